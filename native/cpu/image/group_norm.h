// group_norm.h: normalization over groups of channels of an image (Wu & He, arXiv:1803.08494), and its gradients. Orders of sums:
// rebar_image.h. Lanes are channels; a group's sum adds up those of its channels.
#pragma once
#include "cpu/image/window.h"
#include "cpu/layout.h"

namespace rb::RB_NS {

struct Norm {  // of a launch
  int positions, channels, groups;
  int per_group() const { return channels / groups; }
  float count() const { return static_cast<float>(static_cast<int64_t>(positions) * per_group()); }
};

RB_INLINE int lanes_from(int c, int channels) { return channels - c < 16 ? channels - c : 16; }

// Each channel's sum becomes its group's sum / count.
RB_INLINE void share_in_groups(const Norm& n, float* sums) {
  for (int g = 0; g < n.groups; ++g) {
    float* group = sums + g * n.per_group();
    float total = group[0];
    for (int c = 1; c < n.per_group(); ++c) total += group[c];
    const float mean = total / n.count();
    for (int c = 0; c < n.per_group(); ++c) group[c] = mean;
  }
}

RB_INLINE void put_stats(const Norm& n, const float* mean, const float* scale, float* stats) {
  for (int g = 0; g < n.groups; ++g) {
    stats[g] = mean[g * n.per_group()];
    stats[n.groups + g] = scale[g * n.per_group()];
  }
}
// Group statistics as a value per channel.
RB_INLINE void spread_stats(const Norm& n, const float* stats, float* mean, float* scale) {
  for (int c = 0; c < n.channels; ++c) {
    mean[c] = stats[c / n.per_group()];
    scale[c] = stats[n.groups + c / n.per_group()];
  }
}

RB_INLINE void moments(const Norm& n, const float* x, float eps, float* mean, float* scale) {
  for (int c = 0; c < n.channels; c += 16) {
    const int lanes = lanes_from(c, n.channels);
    F sum = set1(0.0f);
    for (int64_t p = 0; p < n.positions; ++p) sum = add(sum, load(x + p * n.channels + c, lanes));
    store(mean + c, sum, lanes);
  }
  share_in_groups(n, mean);
  for (int c = 0; c < n.channels; c += 16) {
    const int lanes = lanes_from(c, n.channels);
    const F m = load(mean + c, lanes);
    F sum = set1(0.0f);
    for (int64_t p = 0; p < n.positions; ++p) {
      const F d = sub(load(x + p * n.channels + c, lanes), m);
      sum = fma(d, d, sum);
    }
    store(scale + c, sum, lanes);
  }
  share_in_groups(n, scale);
  for (int c = 0; c < n.channels; ++c) scale[c] = 1.0f / __builtin_sqrtf(scale[c] + eps);
}

int64_t group_norm_tasks(const rb_args*, const rb_step* step) { return step->rows; }
size_t group_norm_scratch(const rb_args* a, int32_t) {
  return 2 * sizeof(float) * static_cast<size_t>(a->group_norm.channels);
}

void group_norm_run(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void* scratch) {
  const rb_group_norm& a = args->group_norm;
  const Norm n{a.positions, a.channels, a.groups};
  float *mean = static_cast<float*>(scratch), *scale = mean + n.channels;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    moments(n, x, a.eps, mean, scale);
    put_stats(n, mean, scale, a.stats + r * a.stats_stride);
    for (int c = 0; c < n.channels; c += 16) {
      const int lanes = lanes_from(c, n.channels);
      const F m = load(mean + c, lanes), s = load(scale + c, lanes);
      const F weight = load(a.weight + c, lanes), bias = load(a.bias + c, lanes);
      for (int64_t p = 0; p < n.positions; ++p) {
        const int64_t at = p * n.channels + c;
        store(y + at, fma(mul(sub(load(x + at, lanes), m), s), weight, bias), lanes);
      }
    }
  }
}

int64_t group_norm_gradient_tasks(const rb_args*, const rb_step* step) { return step->rows; }
size_t group_norm_gradient_scratch(const rb_args* a, int32_t) {
  return 4 * sizeof(float) * static_cast<size_t>(a->group_norm_gradient.channels);
}

// 16 channels of one image.
struct Slice {
  F mean, scale, weight;
  F h(F x) const { return mul(sub(x, mean), scale); }
};

void group_norm_gradient_run(const rb_args* args, const rb_step*, int64_t begin, int64_t end, void* scratch) {
  const rb_group_norm_gradient& a = args->group_norm_gradient;
  const Norm n{a.positions, a.channels, a.groups};
  float *mean = static_cast<float*>(scratch), *scale = mean + n.channels, *plain = scale + n.channels;
  float* turned = plain + n.channels;
  for (int64_t r = begin; r < end; ++r) {
    const float *x = a.x + r * a.x_stride, *dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + r * a.dx_stride;
    spread_stats(n, a.stats + r * a.stats_stride, mean, scale);
    const auto slice = [&](int c, int lanes) {
      return Slice{load(mean + c, lanes), load(scale + c, lanes), load(a.weight + c, lanes)};
    };
    for (int c = 0; c < n.channels; c += 16) {
      const int lanes = lanes_from(c, n.channels);
      const Slice s = slice(c, lanes);
      F sum = set1(0.0f), product = set1(0.0f);
      for (int64_t p = 0; p < n.positions; ++p) {
        const F g = mul(load(dy + p * n.channels + c, lanes), s.weight);
        sum = add(sum, g);
        product = fma(g, s.h(load(x + p * n.channels + c, lanes)), product);
      }
      store(plain + c, sum, lanes);
      store(turned + c, product, lanes);
    }
    share_in_groups(n, plain);
    share_in_groups(n, turned);
    for (int c = 0; c < n.channels; c += 16) {
      const int lanes = lanes_from(c, n.channels);
      const Slice s = slice(c, lanes);
      const F A = load(plain + c, lanes), B = load(turned + c, lanes);
      for (int64_t p = 0; p < n.positions; ++p) {
        const int64_t at = p * n.channels + c;
        const F g = mul(load(dy + at, lanes), s.weight), h = s.h(load(x + at, lanes));
        store(dx + at, fma(s.scale, sub(sub(g, A), mul(h, B)), load(dx + at, lanes)), lanes);
      }
    }
  }
}

int64_t group_norm_weight_gradient_tasks(const rb_args* a, const rb_step* step) {
  return step->rows ? tile_count(a->group_norm_weight_gradient.channels) : 0;
}

void group_norm_weight_gradient_run(const rb_args* args, const rb_step* step, int64_t begin, int64_t end, void*) {
  const rb_group_norm_weight_gradient& a = args->group_norm_weight_gradient;
  const Norm n{a.positions, a.channels, a.groups};
  for (int64_t tile = begin; tile < end; ++tile) {
    const int c = static_cast<int>(tile) * 16, lanes = lanes_from(c, n.channels);
    F dweight = load(a.dweight + c, lanes), dbias = load(a.dbias + c, lanes);
    for (int64_t r = 0; r < step->rows; ++r) {
      float mean[16] = {}, scale[16] = {};
      const float* stats = a.stats + r * a.stats_stride;
      for (int i = 0; i < lanes; ++i) {
        mean[i] = stats[(c + i) / n.per_group()];
        scale[i] = stats[n.groups + (c + i) / n.per_group()];
      }
      const Slice s{load(mean), load(scale), set1(0.0f)};
      const float *x = a.x + r * a.x_stride + c, *dy = a.dy + r * a.dy_stride + c;
      for (int64_t p = 0; p < n.positions; ++p) {
        const F d = load(dy + p * n.channels, lanes);
        dweight = fma(d, s.h(load(x + p * n.channels, lanes)), dweight);
        dbias = add(dbias, d);
      }
    }
    store(a.dweight + c, dweight, lanes);
    store(a.dbias + c, dbias, lanes);
  }
}

}  // namespace rb::RB_NS
