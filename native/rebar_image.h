// rebar_image.h: launches over images. Part of rebar.h, which includes it.
//
// The law: a row of the step is an image, [height][width][channels] values, channels innermost; a launch covers all rows. A launch of
// the way back adds into the gradients it names and overwrites nothing; what stands there comes first in each sum. Gradients of weights
// are summed over images ascending and, within one, over positions ascending. "Positions" are those of the output, row by row; padding
// reads as zero. An image is the work of one thread where it is written, a weight where its gradient is.
#pragma once
#include "rebar.h"

// What slides over an image: out = (size + 2 padding - kernel) / stride + 1 in both directions. 0 <= padding < kernel.
typedef struct {
  int32_t height, width, channels;  // of the input
  int32_t out_height, out_width;
  int32_t kernel_height, kernel_width, stride, padding;
} rb_window;

// y[p,j] = sum over (ky, kx, c) of x[p stride - padding + (ky, kx), c] w[j, (ky, kx, c)] + bias[j]: one chain of fma over ascending
// (ky, kx, c) from 0, padding included, then the bias. w (n, kernel_height kernel_width channels) F32, packed. bias may be NULL.
typedef struct {
  rb_matrix w;
  rb_window window;
  const float* x;
  const float* bias;
  float* y;
  int32_t x_stride, y_stride;
} rb_conv;

// dx: of each position p the chain over ascending j from 0 of fma(dy[p,j], w[j,k]), added in ascending p.
typedef struct {
  rb_matrix w;
  rb_window window;
  const float* dy;
  float* dx;
  int32_t dy_stride, dx_stride;
} rb_conv_input_gradient;

// dw[j,k] = fma(x of k at p, dy[p,j], dw[j,k]) over images, then positions ascending; positions whose x is padding are left out.
// dw as w of rb_conv; the empty rows of its last tile stay as they are.
typedef struct {
  rb_matrix dw;
  rb_window window;
  const float* x;
  const float* dy;
  int32_t x_stride, dy_stride;
} rb_conv_weight_gradient;

// db[j] += dy[p,j] over images, then positions ascending.
typedef struct {
  const float* dy;
  float* db;
  int32_t dy_stride, positions, n;
} rb_channel_sums;

// kind 0: y = the largest x of the window, padding left out. kind 1: y = (sum over ascending (ky, kx), padding left out) * (1 / kernel area).
// A window that holds what is not finite gives NaN in kind 0.
typedef struct {
  rb_window window;
  const float* x;
  float* y;
  int32_t x_stride, y_stride, kind;
} rb_pool;

// kind 0: dx += dy at the first (ky, kx) whose x is not below y. kind 1: dx = fma(dy, 1 / kernel area, dx). Ascending positions.
typedef struct {
  rb_window window;
  const float* x;  // NULL in kind 1, as y
  const float* y;
  const float* dy;
  float* dx;
  int32_t x_stride, y_stride, dy_stride, dx_stride, kind;
} rb_pool_gradient;

// y = (x - mean) s weight + bias, s = 1 / sqrt(variance + eps), over groups of channels / groups channels and all positions of an image
// (Wu & He, arXiv:1803.08494). A sum: of each channel over ascending positions, then over the group's channels, ascending, then / count.
// Squares of (x - mean), by fma. y = fma((x - mean) * s, weight, bias). stats[r] = [mean of each group | s of each group].
typedef struct {
  const float* x;
  const float* weight;
  const float* bias;
  float* y;
  float* stats;
  int32_t x_stride, y_stride, stats_stride, positions, channels, groups;
  float eps;
} rb_group_norm;

// With h = (x - mean) * s, g = dy * weight: A, B = means of g and of g h over the group, summed as above, g h by fma;
// dx = fma(s, (g - A) - h * B, dx).
typedef struct {
  const float* x;
  const float* weight;
  const float* stats;
  const float* dy;
  float* dx;
  int32_t x_stride, stats_stride, dy_stride, dx_stride, positions, channels, groups;
} rb_group_norm_gradient;

// dweight = fma(dy, h, dweight), dbias += dy.
typedef struct {
  const float* x;
  const float* stats;
  const float* dy;
  float* dweight;
  float* dbias;
  int32_t x_stride, stats_stride, dy_stride, positions, channels, groups;
} rb_group_norm_weight_gradient;

// y = x, 0 where x < 0.
typedef struct {
  const float* x;
  float* y;
  int32_t x_stride, y_stride, n;
} rb_relu;

// dx += dy where y > 0.
typedef struct {
  const float* y;
  const float* dy;
  float* dx;
  int32_t y_stride, dy_stride, dx_stride, n;
} rb_relu_gradient;

// Element i of a row stays where h(i) >= threshold: y = x * scale, else 0; add: y = fma(x, scale, y), else y as it is. h is a function of
// (key[0], key[1], salt, the row's position, i) alone, and so the same however rows are cut into steps (dropout.h).
typedef struct {
  const float* x;
  float* y;
  const uint32_t* key;  // [2] seed and step, read when the launch runs
  int32_t x_stride, y_stride, n, add;
  uint32_t salt, threshold;
  float scale;
} rb_dropout;
