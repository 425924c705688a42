// SPDX-License-Identifier: MIT
/// \file
/// Every context-extension scheme for RoPE; each is one struct in one file under rope/scaling/.
#pragma once

#include <posenc/rope/scaling/position_interpolation.hpp>
#include <posenc/rope/scaling/theta_scaling.hpp>
#include <posenc/rope/scaling/yarn.hpp>
