# SPDX-License-Identifier: MIT
include(CMakePackageConfigHelpers)

set(posenc_cmake_dir ${CMAKE_INSTALL_DATADIR}/cmake/posenc)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(TARGETS posenc EXPORT posencTargets)
install(EXPORT posencTargets NAMESPACE posenc:: DESTINATION ${posenc_cmake_dir})

configure_package_config_file(packaging/posencConfig.cmake.in posencConfig.cmake
  INSTALL_DESTINATION ${posenc_cmake_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(posencConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/posencConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/posencConfigVersion.cmake
  cmake/posenc-components.cmake
  cmake/posenc-fused-kernels.cpp
  DESTINATION ${posenc_cmake_dir})

# The .pc file finds its prefix from where it lies, since `cmake --install --prefix` may put it anywhere.
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_DATADIR posenc_datadir_is_absolute)
if(posenc_datadir_is_absolute)
  set(POSENC_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH posenc_pc_to_prefix /${CMAKE_INSTALL_DATADIR}/pkgconfig /)
  set(POSENC_PC_PREFIX "\${pcfiledir}/${posenc_pc_to_prefix}")
endif()
# Its include directory may be absolute or lie under the prefix.
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_INCLUDEDIR posenc_includedir_is_absolute)
if(posenc_includedir_is_absolute)
  set(POSENC_PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
else()
  set(POSENC_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(packaging/posenc.pc.in posenc.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/posenc.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
