# SPDX-License-Identifier: MIT
# Twenty steps at once, by one thread, and by two threads with an interruption after ten leave the same checkpoint.
function(run)
  execute_process(COMMAND ${TRAIN} --quiet --encoding t5 --width 32 --heads 2 --layers 1 --tokens 32 --batch 4 --steps 20 ${ARGN}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(--checkpoint ${FOLDER}/whole --threads 1)
run(--checkpoint ${FOLDER}/half --threads 2 --stop 10)
run(--checkpoint ${FOLDER}/resumed --threads 2 --resume ${FOLDER}/half)
foreach(other IN ITEMS half resumed)
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${FOLDER}/whole ${FOLDER}/${other} RESULT_VARIABLE differ
    OUTPUT_QUIET ERROR_QUIET)
  if(other STREQUAL half AND NOT differ)
    message(FATAL_ERROR "ten more steps have changed nothing")
  elseif(other STREQUAL resumed AND differ)
    message(FATAL_ERROR "a run that was interrupted is not the one that was not")
  endif()
endforeach()
