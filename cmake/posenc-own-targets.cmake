# SPDX-License-Identifier: MIT
# How posenc's own tests, examples and benchmarks are compiled. Warnings, sanitizers and optimisation are set on
# these targets alone, never on posenc::posenc and never for a whole directory.

set(posenc_sanitizers "")
if(POSENC_SANITIZE)
  set(posenc_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif()

# posenc_own_target(<target> [<optimisation flag>] [UNSANITIZED]): the flag (default -O1) counts only when no build type
# is set, and is at most -O1 in a build with tests, where examples run for a moment only. UNSANITIZED
# targets test the compiler's work, which the sanitizers would only slow down; they link them nevertheless, for the
# objects that they share with other targets. POSENC_SANITIZE=ALL checks these targets too.
function(posenc_own_target target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UNSANITIZED" "" "")
  set(optimisation -O1)
  if(arg_UNPARSED_ARGUMENTS)
    set(optimisation ${arg_UNPARSED_ARGUMENTS})
  endif()
  if(POSENC_TESTS AND optimisation MATCHES "-O[23]")
    set(optimisation -O1)
  endif()
  set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    target_compile_options(${target} PRIVATE ${optimisation})
  endif()
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    $<$<BOOL:${POSENC_WERROR}>:-Werror>
    # GCC 12 takes copies of small Eigen matrices, and the undefined operand of its own AVX-512 intrinsics, which Eigen
    # calls, for reads of unset memory.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
  if(POSENC_SANITIZE)
    if(NOT arg_UNSANITIZED OR POSENC_SANITIZE STREQUAL "ALL")
      target_compile_options(${target} PRIVATE ${posenc_sanitizers} -g1)
    endif()
    target_link_options(${target} PRIVATE ${posenc_sanitizers})
  endif()
endfunction()

# posenc_link_components(<target>): the optional parts, where this machine has what they need.
function(posenc_link_components target)
  target_link_libraries(${target} PRIVATE posenc::posenc)
  # Some programs here are compiled for plain flags on purpose.
  target_compile_definitions(${target} PRIVATE POSENC_FUSED_ALLOW_SLOW_TARGET)
  foreach(component IN ITEMS fused_headers models)
    if(TARGET posenc::${component})
      target_link_libraries(${target} PRIVATE posenc::${component})
    endif()
  endforeach()
endfunction()

# Clang needs a minute for the kernels of each instruction set under the run-time checkers, and what the narrow ones do
# with memory, so do the wide ones. POSENC_SANITIZE=ALL checks these too.
set(posenc_shared_targets "")
if(POSENC_SANITIZE AND NOT POSENC_SANITIZE STREQUAL "ALL" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(posenc_shared_targets "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)")
endif()

# posenc_use_shared_kernels(<target>...): the fused kernels of every instruction set as tests/fused compiles them once,
# instead of kernels in each of the target's own translation units.
function(posenc_use_shared_kernels)
  if(NOT POSENC_TESTS OR NOT TARGET posenc::fused_dispatch)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    target_compile_definitions(${target} PRIVATE POSENC_FUSED_DISPATCH_ONLY ${posenc_shared_targets})
    target_link_libraries(${target} PRIVATE posenc_tests_fused_kernels posenc::fused_dispatch)
  endforeach()
endfunction()

# posenc_ranks_test(<name> <ranks> <target> [<argument>...]): a test of a program that mpirun starts. Containers, root and
# more ranks than cores: Open MPI takes its settings from the environment, MPICH needs none. Both lose memory that they
# hold to the end.
function(posenc_ranks_test name ranks target)
  add_test(NAME ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
      $<TARGET_FILE:${target}> ${MPIEXEC_POSTFLAGS} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 PROCESSORS 2 ENVIRONMENT
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_mpi_yield_when_idle=1;OMPI_MCA_btl_vader_single_copy_mechanism=none;ASAN_OPTIONS=detect_leaks=0")
endfunction()
