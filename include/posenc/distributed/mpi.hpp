// SPDX-License-Identifier: MIT
/// \file
/// One long sequence over several machines, by MPI.
///
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///     posenc::mpi::context ring(MPI_COMM_WORLD, tokens);                        // who has which rows: zigzag
///     posenc::mpi::attention_into(q, k, v, encoding, options, out, ring);       // this rank's rows of q, k, v and out
///     posenc::mpi::decode_into(q, k, v, encoding, options, out, ring);          // all of q and out, this rank's cache
///
/// Also attention_by_heads_into, which exchanges heads for rows, and attention_backward_into. cost.hpp says which way is
/// cheaper.
///
/// Needs an MPI library (CMake: posenc::mpi) and the fused path. docs/distributed.md says what is sent and when it pays.
#pragma once

#include <posenc/distributed/backward.hpp>
#include <posenc/distributed/by_heads.hpp>
#include <posenc/distributed/context.hpp>
#include <posenc/distributed/cost.hpp>
#include <posenc/distributed/decode.hpp>
#include <posenc/distributed/ring.hpp>
#include <posenc/distributed/split.hpp>
