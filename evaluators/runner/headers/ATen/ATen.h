#pragma once
#pragma GCC system_header

#include <torch/types.h>
