#include "ops/interpret_families.h"

namespace mw::ops {
namespace {

using ir::OpKind;

// A letter of an einsum: its size and its stride in lhs, rhs and out, 0 where it is not.
struct Letter {
  int64_t size = 0, lhs = 0, rhs = 0, out = 0;
};

void add_letters(const std::string& letters, const ir::TensorType& type, int64_t Letter::* stride,
                 std::vector<std::pair<char, Letter>>& all) {
  int64_t step = 1;
  for (size_t i = letters.size(); i-- > 0;) {
    Letter* letter = nullptr;
    for (auto& [name, known] : all) {
      if (name == letters[i]) letter = &known;
    }
    if (letter == nullptr) letter = &all.emplace_back(letters[i], Letter{}).second;
    letter->size = type.dims[i].size;
    letter->*stride = step;
    step *= type.dims[i].size;
  }
}

bool dot(const Call& call) {
  const ir::DotAttrs& attrs = call.op.as<ir::DotAttrs>();
  std::vector<std::pair<char, Letter>> letters;
  add_letters(attrs.lhs, call.in_type(0), &Letter::lhs, letters);
  add_letters(attrs.rhs, call.in_type(1), &Letter::rhs, letters);
  add_letters(attrs.out, call.out_type(), &Letter::out, letters);
  ir::TensorType all;
  for (const auto& [name, letter] : letters) all.dims.emplace_back(letter.size);
  for_each(all, [&](const Index& index, size_t) {
    int64_t lhs = 0, rhs = 0, out = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      const Letter& letter = letters[i].second;
      lhs += index[i] * letter.lhs;
      rhs += index[i] * letter.rhs;
      out += index[i] * letter.out;
    }
    call.out()[static_cast<size_t>(out)] +=
        call.in(0)[static_cast<size_t>(lhs)] * call.in(1)[static_cast<size_t>(rhs)];
  });
  return true;
}

// Calls visit(x place, w place, y place) for every product of the convolution. x_NCHW, w_OIHW,
// y_NOYX
template <typename Visit>
bool convolve(const ir::ConvAttrs& attrs, const ir::TensorType& x, const ir::TensorType& w,
              const ir::TensorType& y, Visit visit) {
  for_each(y, [&](const Index& noyx, size_t y_place) {
    for_each(w, [&](const Index& oihw, size_t w_place) {
      if (oihw[0] != noyx[1]) return;
      const int64_t h = noyx[2] * attrs.stride[0] + oihw[2] - attrs.padding[0];
      const int64_t v = noyx[3] * attrs.stride[1] + oihw[3] - attrs.padding[1];
      if (h < 0 || h >= x.dim(2) || v < 0 || v >= x.dim(3)) return;
      visit(static_cast<size_t>(place(x, {noyx[0], oihw[1], h, v})), w_place, y_place);
    });
  });
  return true;
}

}  // namespace

bool interpret_products(const Call& call) {
  const std::vector<double>* a = call.operands.size() == 2 ? &call.in(0) : nullptr;
  const std::vector<double>* b = call.operands.size() == 2 ? &call.in(1) : nullptr;
  switch (call.op.kind) {
    case OpKind::kDot: return dot(call);
    case OpKind::kConv:
      return convolve(call.op.as<ir::ConvAttrs>(), call.in_type(0), call.in_type(1),
                      call.out_type(),
                      [&](size_t x, size_t w, size_t y) { call.out()[y] += (*a)[x] * (*b)[w]; });
    case OpKind::kConvInputGrad:
      return convolve(call.op.as<ir::ConvAttrs>(), call.out_type(), call.in_type(1),
                      call.in_type(0),
                      [&](size_t x, size_t w, size_t y) { call.out()[x] += (*a)[y] * (*b)[w]; });
    case OpKind::kConvWeightGrad:
      return convolve(call.op.as<ir::ConvAttrs>(), call.in_type(0), call.out_type(),
                      call.in_type(1),
                      [&](size_t x, size_t w, size_t y) { call.out()[w] += (*a)[x] * (*b)[y]; });
    default: return false;
  }
}

}  // namespace mw::ops
