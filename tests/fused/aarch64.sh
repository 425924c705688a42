#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests of the fused path on Arm: the sweep, the face and the guard pages, cross-compiled for an instruction set and
# run by QEMU's user-mode emulation. usage: tests/fused/aarch64.sh [all | NAME...], with names from the table below.
# Without any: SVE2, whose vectors have no size at compile time, which makes it the one most unlike x86's, with half of
# the cases.
# Debian packages: g++-aarch64-linux-gnu qemu-user googletest libeigen3-dev libhwy-dev (headers alone).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly build=build/aarch64 googletest=/usr/src/googletest/googletest
jobs=$(nproc)

# Name, flags, what fused::target_name() must say, emulated processor, sweep cases, tests left out. Emulation is slow,
# of vectors wider than 128 bits several times more so.
targets='
neon     armv8-a         NEON  max              150
sve128   armv8.2-a+sve   SVE   max,sve-max-vq=1 150
sve256   armv8.2-a+sve   SVE   max,sve-max-vq=2 40   *NumberOfThreads
sve512   armv8.2-a+sve   SVE   max,sve-max-vq=4 25   *NumberOfThreads
sve2     armv9-a         SVE2  max,sve-max-vq=1 150'

share=1
(($#)) || { share=2; set -- sve2; }
export share
if [[ $1 != all ]]; then
  targets=$(for name in "$@"; do
    grep "^$name " <<<"$targets" || { echo "aarch64.sh: no instruction set is called $name" >&2; exit 1; }
  done)
fi

# Headers for every architecture, without the rest of /usr/include, which is this machine's own.
mkdir -p "$build/include"
for library in eigen3 hwy; do ln -sfn "/usr/include/$library" "$build/include/$library"; done

compiler=(aarch64-linux-gnu-g++)
command -v ccache >/dev/null && compiler=(ccache "${compiler[@]}")
compiler+=(-std=c++20 -I"$googletest" -isystem "$googletest/include")
own=(-O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -Wno-psabi -Wno-maybe-uninitialized
     -DPOSENC_SWEEP_CASES=180 -Iinclude -Itests -isystem "$build/include" -isystem "$build/include/eigen3")
tests=(-march=armv8-a -DPOSENC_FUSED_DISPATCH_ONLY -DPOSENC_TESTS_ONE_TARGET)  # one_target.cpp holds the kernels
readonly sources=(sweep attention guard_page)
objects=("${sources[@]/#/$build/}") && objects=("${objects[@]/%/_test.o}")
flags=$(awk '{print $2}' <<<"$targets" | sort -u)

# One command per line, so many of them at a time.
in_parallel() { xargs -d '\n' -P "$jobs" -I{} bash -c '{}'; }

echo "compiling for aarch64"
{
  for source in "${sources[@]}"; do
    echo "${compiler[*]} ${own[*]} ${tests[*]} -c tests/fused/${source}_test.cpp -o $build/${source}_test.o"
  done
  for flag in $flags; do
    echo "${compiler[*]} ${own[*]} -march=$flag -c tests/fused/one_target.cpp -o $build/$flag.o"
  done
  for source in gtest-all gtest_main; do
    echo "${compiler[*]} -O1 -c $googletest/src/$source.cc -o $build/$source.o"
  done
} | in_parallel
for flag in $flags; do
  aarch64-linux-gnu-g++ -static -o "$build/$flag-tests" "$build/$flag.o" "${objects[@]}" \
    "$build"/gtest{-all,_main}.o 2> >(grep -v 'statically linked applications\|in function .testing::' >&2)
done

# Prints what failed, and one line of what passed.
cat >"$build/run_one" <<'END'
#!/usr/bin/env bash
set -euo pipefail
read -r GTEST_SHARD_INDEX name flags target processor cases left_out
export GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX
log=$0-$name.$GTEST_SHARD_INDEX.log
if ! POSENC_EXPECTED_TARGET=$target POSENC_SWEEP_CASES=$((cases / share)) \
     qemu-aarch64 -cpu "$processor" "${0%/*}/$flags-tests" --gtest_brief=1 --gtest_filter="-$left_out" >"$log" 2>&1; then
  cat "$log"
  echo "$name: FAILED"
  exit 1
fi
echo "$name ($target, $processor): $(tail -n 1 "$log")"
END
chmod +x "$build/run_one"
echo "running under $(qemu-aarch64 --version | head -n 1)"
grep . <<<"$targets" | tac | sed "s|.*|echo '0 &' \| $build/run_one\necho '1 &' \| $build/run_one|" | in_parallel
