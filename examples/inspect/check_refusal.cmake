# SPDX-License-Identifier: MIT
# Runs posenc-inspect on what it must refuse: status 2, one line on standard error, nothing on standard output.
#   cmake -D inspect=<program> -D folder=<scratch folder> -P check_refusal.cmake
file(MAKE_DIRECTORY ${folder})
file(WRITE ${folder}/broken.json "{\"model_type\": \"llama\"")
file(WRITE ${folder}/unknown.json "{\"model_type\": \"brand_new\"}")
file(WRITE ${folder}/broken.gguf "GGUF")
foreach(arguments
    "${folder}/broken.json" "${folder}/unknown.json" "${folder}/broken.gguf" "${folder}/absent.json" "--json" "--wrong"
    "${folder}/broken.json;--json" "${folder}/broken.json;--length;x" "${folder}/broken.json;--positions;1,,2")
  execute_process(COMMAND ${inspect} ${arguments} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 2 OR NOT out STREQUAL "" OR NOT err MATCHES "^posenc-inspect: [^\n]+\n$")
    message(FATAL_ERROR "posenc-inspect ${arguments}: status ${status}\nstdout: ${out}\nstderr: ${err}")
  endif()
endforeach()
