# SPDX-License-Identifier: MIT
# The parts of posenc that need more than Eigen, as targets. Used by the build tree and, installed next to
# posencConfig.cmake, by find_package(posenc).
#   posenc::fused           <posenc/fused.hpp>   kernels of every instruction set, compiled once in your build, of which a
#                           program takes the best when it runs; needs Google Highway's headers and library. Where only
#                           the headers are found it is posenc::fused_headers.
#   posenc::fused_headers   the same header-only: kernels in every translation unit that calls them, for its -m flags
#   posenc::fused_dispatch  posenc::fused_headers with Highway's library: for programs of which one .cpp holds the kernels
#                           (posenc/fused/dispatch.hpp)
#   posenc::models          <posenc/models.hpp>  needs nlohmann/json
#   posenc::mpi             <posenc/distributed/mpi.hpp>  posenc::fused over several machines; needs an MPI library. Looked for
#                           where POSENC_MPI is set (posenc's own build; find_package with the component mpi)

if(NOT TARGET posenc::fused)
  find_path(POSENC_HWY_INCLUDE_DIR hwy/highway.h DOC "Where hwy/highway.h of Google Highway lies")
  find_library(POSENC_HWY_LIBRARY hwy DOC "Google Highway's library")
  mark_as_advanced(POSENC_HWY_INCLUDE_DIR POSENC_HWY_LIBRARY)
  if(POSENC_HWY_INCLUDE_DIR)
    add_library(posenc::fused_headers INTERFACE IMPORTED GLOBAL)
    target_link_libraries(posenc::fused_headers INTERFACE posenc::posenc)
    target_include_directories(posenc::fused_headers INTERFACE ${POSENC_HWY_INCLUDE_DIR})
    add_library(posenc::fused INTERFACE IMPORTED GLOBAL)
    if(POSENC_HWY_LIBRARY)
      add_library(posenc::fused_dispatch INTERFACE IMPORTED GLOBAL)
      target_link_libraries(posenc::fused_dispatch INTERFACE posenc::fused_headers ${POSENC_HWY_LIBRARY})
      add_library(posenc_fused_kernels STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/posenc-fused-kernels.cpp)
      set_target_properties(posenc_fused_kernels PROPERTIES
        CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON)
      # Kernels that are not optimised are a hundred times slower, and nobody steps through them: a build without a
      # type, or for debugging, optimises them all the same.
      target_compile_options(posenc_fused_kernels PRIVATE
        $<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:-O2>)
      target_link_libraries(posenc_fused_kernels PUBLIC posenc::fused_dispatch)
      target_link_libraries(posenc::fused INTERFACE posenc_fused_kernels posenc::fused_dispatch)
      target_compile_definitions(posenc::fused INTERFACE POSENC_FUSED_DISPATCH_ONLY)
    else()
      target_link_libraries(posenc::fused INTERFACE posenc::fused_headers)
    endif()
  endif()
endif()

if(NOT TARGET posenc::models)
  if(NOT TARGET nlohmann_json::nlohmann_json)
    find_package(nlohmann_json 3.9 QUIET)
  endif()
  if(TARGET nlohmann_json::nlohmann_json)
    add_library(posenc::models INTERFACE IMPORTED GLOBAL)
    target_link_libraries(posenc::models INTERFACE posenc::posenc nlohmann_json::nlohmann_json)
  endif()
endif()

if(POSENC_MPI AND TARGET posenc::fused AND NOT TARGET posenc::mpi)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface is all that is used
  find_package(MPI QUIET COMPONENTS CXX)
  if(TARGET MPI::MPI_CXX)
    add_library(posenc::mpi INTERFACE IMPORTED GLOBAL)
    target_link_libraries(posenc::mpi INTERFACE posenc::fused MPI::MPI_CXX)
  endif()
endif()
