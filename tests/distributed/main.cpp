// SPDX-License-Identifier: MIT
/// \file
/// main of the tests that several ranks run together. A rank that fails makes the program fail.
#include <mpi.h>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  int level = 0, failed = 0, any = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  ::testing::InitGoogleTest(&argc, argv);
  failed = RUN_ALL_TESTS();
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
