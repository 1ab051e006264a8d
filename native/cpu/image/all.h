// all.h: every kernel over images; included once by each isa_*.cpp of this folder.
#pragma once
#include "cpu/image/activations.h"
#include "cpu/image/conv.h"
#include "cpu/image/group_norm.h"
#include "cpu/image/kernels.h"
#include "cpu/image/pool.h"
