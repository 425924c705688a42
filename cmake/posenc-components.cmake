# SPDX-License-Identifier: MIT
# The parts of posenc that need more than Eigen, as targets. Used by the build tree and, installed next to
# posencConfig.cmake, by find_package(posenc COMPONENTS fused models).
#   posenc::fused   <posenc/fused/...>   needs the headers of Google Highway; nothing to link
#   posenc::fused_dispatch          posenc::fused, linked with Highway's library: for programs of which one .cpp holds
#                                   the kernels of all instruction sets (posenc/fused/dispatch.hpp)
#   posenc::models  <posenc/models/...>  needs nlohmann/json

if(NOT TARGET posenc::fused)
  find_path(POSENC_HWY_INCLUDE_DIR hwy/highway.h DOC "Where hwy/highway.h of Google Highway lies")
  mark_as_advanced(POSENC_HWY_INCLUDE_DIR)
  if(POSENC_HWY_INCLUDE_DIR)
    add_library(posenc::fused INTERFACE IMPORTED GLOBAL)
    target_link_libraries(posenc::fused INTERFACE posenc::posenc)
    target_include_directories(posenc::fused INTERFACE ${POSENC_HWY_INCLUDE_DIR})
  endif()
endif()

if(TARGET posenc::fused AND NOT TARGET posenc::fused_dispatch)
  find_library(POSENC_HWY_LIBRARY hwy DOC "Google Highway's library")
  mark_as_advanced(POSENC_HWY_LIBRARY)
  if(POSENC_HWY_LIBRARY)
    add_library(posenc::fused_dispatch INTERFACE IMPORTED GLOBAL)
    target_link_libraries(posenc::fused_dispatch INTERFACE posenc::fused ${POSENC_HWY_LIBRARY})
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
