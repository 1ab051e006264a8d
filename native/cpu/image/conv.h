// conv.h: convolution and its gradients. Formulas and orders of sums: rebar_image.h.
//
// Forward: a task is some positions of one image. The image lies with its padding in scratch, so that (ky, kx, c) is one run of
// kernel_width * channels values per ky, and kPanelRows positions share each load of 16 weights.
#pragma once
#include "cpu/image/window.h"
#include "cpu/layout.h"

namespace rb::RB_NS {

constexpr int kConvPanels = 8;  // a task: 8 panels share the padding of one image, 16-64 positions

RB_INLINE int64_t conv_tasks_of(const rb_window& w) {
  return (window_positions(w) + kConvPanels * kPanelRows - 1) / (kConvPanels * kPanelRows);
}

int64_t conv_tasks(const rb_args* a, const rb_step* step) { return step->rows * conv_tasks_of(a->conv.window); }

size_t conv_scratch(const rb_args* a, int32_t) {
  return a->conv.window.padding ? 64 + static_cast<size_t>(padded_values(a->conv.window)) * sizeof(float) : 64;
}

// One tile of 16 outputs for R positions, whose windows begin at at[r].
template <int R>
RB_INLINE void conv_products(const float* tile, const float* const* at, const rb_window& w, F* acc) {
  const int64_t run = int64_t{w.kernel_width} * w.channels, line = padded_width(w) * w.channels;
  RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  for (int64_t ky = 0; ky < w.kernel_height; ++ky) {
    const float* x[R];
    RB_UNROLL for (int r = 0; r < R; ++r) x[r] = at[r] + ky * line;
    for (int64_t i = 0; i < run; ++i, tile += 16) {
      const F weight = load(tile);
      RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = fma(set1(x[r][i]), weight, acc[r]);
    }
  }
}

using ConvPanel = void (*)(const rb_conv&, const float* const* at, float* y, int64_t tile);

template <int R>
static void conv_panel(const rb_conv& a, const float* const* at, float* y, int64_t tile) {
  F acc[R];
  const int64_t first = tile * 16;
  conv_products<R>(static_cast<const float*>(a.w.data) + first * a.w.k, at, a.window, acc);
  const int lanes = a.w.n - first < 16 ? static_cast<int>(a.w.n - first) : 16;
  RB_UNROLL for (int r = 0; r < R; ++r) {
    const F out = a.bias != nullptr ? add(acc[r], load(a.bias + first, lanes)) : acc[r];
    store(y + r * int64_t{a.w.n} + first, out, lanes);
  }
}

template <int Most>
struct ConvPanels {  // conv_panel for 1..Most positions
  ConvPanel run[Most + 1];
  constexpr ConvPanels() : run{} { set<Most>(); }
  template <int R>
  constexpr void set() {
    run[R] = conv_panel<R>;
    if constexpr (R > 1) set<R - 1>();
  }
};

// Positions begin..end-1 of an image that has its padding.
RB_INLINE void conv_positions(const rb_conv& a, const float* image, float* y, int64_t begin, int64_t end) {
  static constexpr ConvPanels<kPanelRows> by_rows{};
  const float* at[kConvPanels * kPanelRows];
  for (int64_t p = begin; p < end; ++p) at[p - begin] = image + padded_at(a.window, p);
  for (int64_t tile = 0; tile < tile_count(a.w.n); ++tile) {
    for (int64_t p = begin; p < end; p += kPanelRows) {
      const int count = static_cast<int>(end - p < kPanelRows ? end - p : kPanelRows);
      by_rows.run[count](a, at + (p - begin), y + p * a.w.n, tile);
    }
  }
}

// Scratch: the number of the image that lies there, plus 1; then the image.
void conv_run(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void* scratch) {
  const rb_conv& a = args->conv;
  const int64_t per_image = conv_tasks_of(a.window), positions = window_positions(a.window);
  int64_t there;
  memcpy(&there, scratch, sizeof there);
  float* padded = static_cast<float*>(scratch) + 16;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t image = task / per_image, first = task % per_image * kConvPanels * kPanelRows;
    const int64_t last = first + kConvPanels * kPanelRows;
    const float* x = a.x + image * a.x_stride;
    if (a.window.padding != 0 && there != image + 1) pad(a.window, x, padded);
    there = image + 1;
    conv_positions(a, a.window.padding != 0 ? padded : x, a.y + image * a.y_stride, first,
                   last < positions ? last : positions);
  }
  memcpy(scratch, &there, sizeof there);
}

// Way back to the input. A task is an image; its gradient stands with its padding in scratch while positions are added, and behind it
// the weights as [n][inputs, rounded up to 16], which are laid out once a thread, and what a panel of positions adds.
struct InputGradientRoom {
  int64_t wide;  // inputs rounded up to 16
  float *image, *weights, *panel;
  InputGradientRoom(const rb_conv_input_gradient& a, void* scratch)
      : wide(round_up(a.w.k, 16)),
        image(static_cast<float*>(scratch) + 16),
        weights(image + round_up(padded_values(a.window), 16)),
        panel(weights + wide * a.w.n) {}
};

int64_t conv_input_gradient_tasks(const rb_args*, const rb_step* step) { return step->rows; }

size_t conv_input_gradient_scratch(const rb_args* args, int32_t) {
  const rb_conv_input_gradient& a = args->conv_input_gradient;
  const int64_t values = round_up(padded_values(a.window), 16) + round_up(a.w.k, 16) * (a.w.n + int64_t{kPanelRows});
  return 64 + static_cast<size_t>(values) * sizeof(float);
}

RB_INLINE void lay_out_weights(const rb_matrix& w, int64_t wide, float* out) {
  const float* tiles = static_cast<const float*>(w.data);
  for (int64_t j = 0; j < w.n; ++j) {
    const float* in = tiles + j / 16 * 16 * w.k + j % 16;
    for (int64_t i = 0; i < w.k; ++i) out[j * wide + i] = in[i * 16];
    for (int64_t i = w.k; i < wide; ++i) out[j * wide + i] = 0.0f;
  }
}

// panel[r][k] = the chain over j of dy[r][j] w[j][k].
template <int R>
RB_INLINE void input_products(const float* weights, int64_t wide, const float* dy, int64_t n, float* panel) {
  for (int64_t k = 0; k < wide; k += 16) {
    F acc[R];
    RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
    for (int64_t j = 0; j < n; ++j) {
      const F weight = load(weights + j * wide + k);
      RB_UNROLL for (int r = 0; r < R; ++r) acc[r] = fma(set1(dy[r * n + j]), weight, acc[r]);
    }
    RB_UNROLL for (int r = 0; r < R; ++r) store(panel + r * wide + k, acc[r]);
  }
}

// Adds what position p gives to the image.
RB_INLINE void add_window(const rb_window& w, const float* from, float* image, int64_t p) {
  const int64_t run = int64_t{w.kernel_width} * w.channels, line = padded_width(w) * w.channels;
  float* to = image + padded_at(w, p);
  for (int ky = 0; ky < w.kernel_height; ++ky, from += run, to += line) {
    for (int64_t i = 0; i < run; i += 16) {
      const int lanes = run - i < 16 ? static_cast<int>(run - i) : 16;
      store(to + i, add(load(to + i, lanes), load(from + i, lanes)), lanes);
    }
  }
}

void conv_input_gradient_run(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void* scratch) {
  const rb_conv_input_gradient& a = args->conv_input_gradient;
  const InputGradientRoom room(a, scratch);
  int64_t ready;
  memcpy(&ready, scratch, sizeof ready);
  if (ready == 0) lay_out_weights(a.w, room.wide, room.weights);
  ready = 1;
  memcpy(scratch, &ready, sizeof ready);
  const int64_t positions = window_positions(a.window), n = a.w.n;
  for (int64_t image = begin; image < end; ++image) {
    const float* dy = a.dy + image * a.dy_stride;
    pad(a.window, a.dx + image * a.dx_stride, room.image);
    for (int64_t p = 0; p < positions; p += kPanelRows) {
      const int64_t count = positions - p < kPanelRows ? positions - p : kPanelRows;
      if (count == kPanelRows)
        input_products<kPanelRows>(room.weights, room.wide, dy + p * n, n, room.panel);
      else
        for (int64_t r = 0; r < count; ++r)
          input_products<1>(room.weights, room.wide, dy + (p + r) * n, n, room.panel + r * room.wide);
      for (int64_t r = 0; r < count; ++r) add_window(a.window, room.panel + r * room.wide, room.image, p + r);
    }
    unpad(a.window, room.image, a.dx + image * a.dx_stride);
  }
}

// Gradient of the weights. A task is a tile of 16 outputs and up to kPanelRows channels of one (ky, kx): its sums stay in registers
// while all images pass.
RB_INLINE int64_t channel_blocks(const rb_window& w) { return (w.channels + kPanelRows - 1) / kPanelRows; }

int64_t conv_weight_gradient_tasks(const rb_args* args, const rb_step* step) {
  const rb_conv_weight_gradient& a = args->conv_weight_gradient;
  if (step->rows == 0) return 0;
  return tile_count(a.dw.n) * a.window.kernel_height * a.window.kernel_width * channel_blocks(a.window);
}

struct Tap {  // what one task sums for
  int64_t tile;
  int ky, kx, channel, count;
};

RB_INLINE Tap tap_of(const rb_conv_weight_gradient& a, int64_t task) {
  const rb_window& w = a.window;
  const int64_t blocks = channel_blocks(w), taps = int64_t{w.kernel_height} * w.kernel_width;
  const int channel = static_cast<int>(task % blocks) * kPanelRows;
  const int64_t k = task / blocks % taps;
  return {task / blocks / taps, static_cast<int>(k / w.kernel_width), static_cast<int>(k % w.kernel_width), channel,
          w.channels - channel < kPanelRows ? w.channels - channel : kPanelRows};
}

// First and behind the last o with 0 <= o stride - padding + k < size.
RB_INLINE int first_inside(const rb_window& w, int k) {
  return k >= w.padding ? 0 : (w.padding - k + w.stride - 1) / w.stride;
}
RB_INLINE int end_inside(const rb_window& w, int k, int size, int out) {
  const int last = size - 1 + w.padding - k;
  const int end = last < 0 ? 0 : last / w.stride + 1;
  return end < out ? end : out;
}

template <int R>
static void weight_gradient(const rb_conv_weight_gradient& a, int64_t rows, const Tap& t) {
  const rb_window& w = a.window;
  const int64_t n = a.dw.n, first = t.tile * 16;
  const int lanes = n - first < 16 ? static_cast<int>(n - first) : 16;
  const int64_t k = (int64_t{t.ky} * w.kernel_width + t.kx) * w.channels + t.channel;
  float* dw = static_cast<float*>(const_cast<void*>(a.dw.data)) + first * a.dw.k + k * 16;
  const int oy_end = end_inside(w, t.ky, w.height, w.out_height), ox_end = end_inside(w, t.kx, w.width, w.out_width);
  F acc[R];
  RB_UNROLL for (int c = 0; c < R; ++c) acc[c] = load(dw + c * 16);
  for (int64_t r = 0; r < rows; ++r) {
    for (int oy = first_inside(w, t.ky); oy < oy_end; ++oy) {
      int ox = first_inside(w, t.kx);
      const float* x = a.x + r * a.x_stride + input_at(w, oy, ox, t.ky, t.kx) + t.channel;
      const float* dy = a.dy + r * a.dy_stride + (int64_t{oy} * w.out_width + ox) * n + first;
      for (; ox < ox_end; ++ox, x += int64_t{w.stride} * w.channels, dy += n) {
        const F d = load(dy, lanes);
        RB_UNROLL for (int c = 0; c < R; ++c) acc[c] = fma(set1(x[c]), d, acc[c]);
      }
    }
  }
  RB_UNROLL for (int c = 0; c < R; ++c) store(dw + c * 16, acc[c], lanes);
}

template <int Most>
struct WeightGradients {  // weight_gradient for 1..Most channels
  void (*run[Most + 1])(const rb_conv_weight_gradient&, int64_t, const Tap&);
  constexpr WeightGradients() : run{} { set<Most>(); }
  template <int R>
  constexpr void set() {
    run[R] = weight_gradient<R>;
    if constexpr (R > 1) set<R - 1>();
  }
};

void conv_weight_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  static constexpr WeightGradients<kPanelRows> by_channels{};
  for (int64_t task = begin; task < end; ++task) {
    const Tap t = tap_of(args->conv_weight_gradient, task);
    by_channels.run[t.count](args->conv_weight_gradient, step->rows, t);
  }
}

int64_t channel_sums_tasks(const rb_args* a, const rb_step* step) {
  return step->rows ? tile_count(a->channel_sums.n) : 0;
}

void channel_sums_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_channel_sums& a = args->channel_sums;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * 16;
    const int lanes = a.n - first < 16 ? static_cast<int>(a.n - first) : 16;
    F sum = load(a.db + first, lanes);
    for (int64_t r = 0; r < step->rows; ++r) {
      const float* dy = a.dy + r * a.dy_stride + first;
      for (int p = 0; p < a.positions; ++p, dy += a.n) sum = add(sum, load(dy, lanes));
    }
    store(a.db + first, sum, lanes);
  }
}

}  // namespace rb::RB_NS
