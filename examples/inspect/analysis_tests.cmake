# SPDX-License-Identifier: MIT
# posenc-inspect --analyse on published configurations: sentences whose numbers are known from elsewhere, and time.
set(configs ${PROJECT_SOURCE_DIR}/examples/configs)

# Plain pairs with less than a turn in 4096 tokens: 10000^(-p/64)·4096 < 2π from p = 45.02 on, 18 of 64.
add_test(NAME example.posenc-inspect.analyse
  COMMAND posenc-inspect llama-2-7b.json --analyse --length 16384 --scaling linear:factor=4 WORKING_DIRECTORY ${configs})
set_tests_properties(example.posenc-inspect.analyse PROPERTIES TIMEOUT 60 PASS_REGULAR_EXPRESSION
  "at 16384 tokens, 18 of 64 pairs enter phases never trained.*at 16384 tokens, 0 of 64 pairs enter phases never trained")

# ALiBi's steepest of 32 heads has the slope 2^(-1/4) divided by sqrt(64): 9 ln 2 / 0.105 = 59.3 tokens.
add_test(NAME example.posenc-inspect.analyse.alibi
  COMMAND posenc-inspect falcon-rw-1b.json --analyse --length 2048 WORKING_DIRECTORY ${configs})
add_test(NAME example.posenc-inspect.analyse.t5
  COMMAND posenc-inspect t5-small.json --analyse --json --length 512 WORKING_DIRECTORY ${configs})
set_tests_properties(example.posenc-inspect.analyse.alibi PROPERTIES TIMEOUT 60
  PASS_REGULAR_EXPRESSION "the steepest head \\(slope 0.105\\) sees 60 tokens")
# T5's last bucket of 16 starts at 8·16^(7/8) = 90.5 (encoder), of 32 at 16·8^(15/16) = 112.4 (decoder).
set_tests_properties(example.posenc-inspect.analyse.t5 PROPERTIES TIMEOUT 60
  PASS_REGULAR_EXPRESSION "\"saturation_distance\": 91.*\"saturation_distance\": 113")
add_test(NAME example.posenc-inspect.analyse.storage
  COMMAND posenc-inspect llama-2-7b.json --analyse --storage fp8 WORKING_DIRECTORY ${configs})
set_tests_properties(example.posenc-inspect.analyse.storage PROPERTIES TIMEOUT 60
  PASS_REGULAR_EXPRESSION "--storage: fp8 is none of float32, bfloat16, half")

add_test(NAME example.posenc-inspect.analyse.length
  COMMAND posenc-inspect llama-2-7b.json --analyse --length 1000000000 WORKING_DIRECTORY ${configs})
set_tests_properties(example.posenc-inspect.analyse.length PROPERTIES TIMEOUT 60
  PASS_REGULAR_EXPRESSION "a length of 1000000000 tokens is not between 1 and 67108864")

# A second for 131072 tokens and ten for a million are what people wait for; the limits here leave room for slow builds
# and busy machines.
set(models smollm2-135m)
if(NOT POSENC_SANITIZE)
  list(APPEND models llama-3.1-8b)
endif()
foreach(model IN LISTS models)
  add_test(NAME example.posenc-inspect.analyse.${model}.131072
    COMMAND posenc-inspect ${model}.json --analyse --length 131072 WORKING_DIRECTORY ${configs})
  set_tests_properties(example.posenc-inspect.analyse.${model}.131072 PROPERTIES TIMEOUT 60
    PASS_REGULAR_EXPRESSION "0 of 8.59e\\+09 pairs of positions have equal codes in bfloat16")
endforeach()
if(NOT POSENC_SANITIZE)
  add_test(NAME example.posenc-inspect.analyse.million
    COMMAND posenc-inspect llama-3.1-8b.json --analyse --length 1000000 WORKING_DIRECTORY ${configs})
  set_tests_properties(example.posenc-inspect.analyse.million PROPERTIES TIMEOUT 300
    PASS_REGULAR_EXPRESSION "0 of 5e\\+11 pairs of positions have equal codes in bfloat16")
endif()
