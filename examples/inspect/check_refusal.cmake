# SPDX-License-Identifier: MIT
# Runs posenc-inspect on what it must refuse: status 2, one line on standard error, nothing on standard output.
#   cmake -D inspect=<program> -D folder=<scratch folder> -P check_refusal.cmake
file(MAKE_DIRECTORY ${folder})
file(WRITE ${folder}/broken.json "{\"model_type\": \"llama\"")
file(WRITE ${folder}/unknown.json "{\"model_type\": \"brand_new\"}")
file(WRITE ${folder}/misspelt.json "{\"model_type\": \"llama\", \"head_dim\": 16, \"hidden_size\": 64, \"num_attention_heads\": 4, "
  "\"max_position_embeddings\": 128, \"rope_scaling\": {\"rope_type\": \"lama3\", \"factor\": 2.0}}")
file(WRITE ${folder}/broken.gguf "GGUF")
foreach(arguments
    "${folder}/broken.json" "${folder}/unknown.json" "${folder}/broken.gguf" "${folder}/absent.json" "--json" "--wrong"
    "${folder}/broken.json;--json" "${folder}/broken.json;--length;x" "${folder}/broken.json;--positions;1,,2")
  execute_process(COMMAND ${inspect} ${arguments} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 2 OR NOT out STREQUAL "" OR NOT err MATCHES "^posenc-inspect: [^\n]+\n$")
    message(FATAL_ERROR "posenc-inspect ${arguments}: status ${status}\nstdout: ${out}\nstderr: ${err}")
  endif()
endforeach()
# Whatever is wrong with a file, the line names it, once.
foreach(file broken.json unknown.json misspelt.json broken.gguf absent.json)
  execute_process(COMMAND ${inspect} ${folder}/${file} ERROR_VARIABLE err)
  if(NOT err MATCHES "${file}" OR err MATCHES "${file}.*${file}")
    message(FATAL_ERROR "posenc-inspect ${file}: stderr: ${err}")
  endif()
endforeach()
