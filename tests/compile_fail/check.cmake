# SPDX-License-Identifier: MIT
# cmake -DSOURCE=file.cpp -DCOMPILE=compiler;flag;... -P check.cmake
file(STRINGS ${SOURCE} expected REGEX "^// error: ")
list(TRANSFORM expected REPLACE "^// error: " "")
if(NOT expected)
  message(FATAL_ERROR "${SOURCE} does not say which error it expects")
endif()

execute_process(COMMAND ${COMPILE} ${SOURCE} RESULT_VARIABLE status ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the good variant does not compile:\n${output}")
endif()

execute_process(COMMAND ${COMPILE} -DPOSENC_BAD ${SOURCE} RESULT_VARIABLE status ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "the bad variant compiles")
endif()
foreach(sentence IN LISTS expected)
  if(NOT output MATCHES "${sentence}")
    message(FATAL_ERROR "the bad variant is refused, but not with /${sentence}/:\n${output}")
  endif()
endforeach()
