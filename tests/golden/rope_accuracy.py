# SPDX-License-Identifier: MIT
"""Writes rope_accuracy.json: cos and sin of position * base^(-2p/128), correctly rounded to 17 digits.

    python3 rope_accuracy.py > rope_accuracy.json

mpmath 1.3.0, 80 digits. Negative positions follow by symmetry and are left to the test.
"""
import json

import mpmath

mpmath.mp.dps = 80
HEAD_DIM = 128
POSITIONS = [0, 1, 4095, 131071, 1048575, 2**24 + 1, 2**26, 2**40 + 1, 2**62 - 1]
BASES = [10000, 500000, 1000000]


def digits(value):
    return float(mpmath.nstr(value, 17))


cases = []
for base in BASES:
    frequencies = [mpmath.mpf(base) ** (-mpmath.mpf(2 * p) / HEAD_DIM) for p in range(HEAD_DIM // 2)]
    for position in POSITIONS:
        cases.append({
            "base": base,
            "position": position,
            "cos": [digits(mpmath.cos(position * w)) for w in frequencies],
            "sin": [digits(mpmath.sin(position * w)) for w in frequencies],
        })
print('{"about": "python tests/golden/rope_accuracy.py > tests/golden/rope_accuracy.json; mpmath 1.3.0", "cases": [')
print(",\n".join(json.dumps(case) for case in cases))
print("]}")
