#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The fused tests with another Highway than the system's. usage: tests/fused/current_highway.sh HIGHWAY_FOLDER [BUILD_FOLDER]
# HIGHWAY_FOLDER holds Highway's sources: hwy/highway.h, hwy/targets.cc, …. NumPy's source package carries them too, at
# numpy/_core/src/highway. Part of ./run nightly, not of .ci/run, which installs Debian's Highway alone.
set -euo pipefail
highway=$(realpath "${1:?which folder of Highway sources}")
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
build=$(realpath -m "${2:-$root/build/highway}")
cd "$root"
mkdir -p "$build"

# What posenc::fused_dispatch links: the detection of the machine's instruction sets.
for source in targets abort; do
  [[ -f $highway/hwy/$source.cc ]] || continue  # abort.cc came later
  c++ -std=c++17 -O2 -I"$highway" -c "$highway/hwy/$source.cc" -o "$build/$source.o"
done
ar rcs "$build/libhwy.a" "$build"/*.o

cmake -S . -B "$build" -G Ninja -DPOSENC_EXAMPLES=OFF -DPOSENC_BENCH=OFF -DPOSENC_WERROR=ON \
  -DPOSENC_HWY_INCLUDE_DIR="$highway" -DPOSENC_HWY_LIBRARY="$build/libhwy.a" >/dev/null
programs=(posenc_tests_fused{,_native,_isa_mix,_isa_mix_dispatched})
cmake --build "$build" --target "${programs[@]}"
awk '/define HWY_(MAJOR|MINOR|PATCH)/ {v = v (v ? "." : "") $3} END {print "Highway " v}' "$highway/hwy/base.h"
for program in "${programs[@]}"; do
  "$(find "$build/tests" -name "$program" -type f)" --gtest_brief=1 --gtest_output="xml:$build/$program.xml"
  grep -o '"targets" value="[^"]*"' "$build/$program.xml" || true
done
