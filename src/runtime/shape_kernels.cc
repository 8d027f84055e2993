// Ops that move elements: broadcast, transpose, slices and their kin, views, and what the
// partitioner adds.
#include <algorithm>
#include <cstring>

#include "runtime/kernel_table.h"
#include "runtime/parallel.h"
#include "runtime/strided_plan.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

std::vector<int64_t> sizes_of(const ir::TensorType& type) {
  std::vector<int64_t> sizes;
  for (const ir::Dim& dim : type.dims) sizes.push_back(dim.size);
  return sizes;
}

// Copies one view of the operand to one view of the result, each at an offset in elements.
Prepared prepare_move(const OpContext& c, const std::vector<int64_t>& sizes,
                      const std::vector<int64_t>& source, int64_t source_offset,
                      const std::vector<int64_t>& target, int64_t target_offset,
                      bool zero_first = false) {
  const auto plan = StridedPlan::make(c.result().dtype, sizes, source, target);
  if (!plan) return nullptr;
  const int64_t element = dtype_size(c.result().dtype);
  const int64_t zeroed = zero_first ? c.result().bytes().value : 0;
  return make_kernel([plan = *plan, from = source_offset * element, to = target_offset * element,
                      zeroed, threads = c.threads()](const Args& a) {
    if (zeroed > 0) std::memset(a.out<char>(), 0, static_cast<size_t>(zeroed));
    plan.run(a.in<char>(0) + from, a.out<char>() + to, threads);
  });
}

Prepared prepare_broadcast(const OpContext& c) {
  const std::vector<int>& dims = c.op.as<ir::DimsAttrs>().dims;
  const std::vector<int64_t> own = strides_of(c.operand(0));
  std::vector<int64_t> source(c.result().dims.size(), 0);
  for (size_t d = 0; d < dims.size(); ++d) source[static_cast<size_t>(dims[d])] = own[d];
  return prepare_move(c, sizes_of(c.result()), source, 0, strides_of(c.result()), 0);
}

Prepared prepare_transpose(const OpContext& c) {
  // Dimension d of the result is dimension dims[d] of the operand.
  const std::vector<int>& dims = c.op.as<ir::DimsAttrs>().dims;
  const std::vector<int64_t> own = strides_of(c.operand(0));
  std::vector<int64_t> source;
  for (const int d : dims) source.push_back(own[static_cast<size_t>(d)]);
  return prepare_move(c, sizes_of(c.result()), source, 0, strides_of(c.result()), 0);
}

Prepared prepare_slice(const OpContext& c) {
  const auto& attrs = c.op.as<ir::SliceAttrs>();
  std::vector<int64_t> source = strides_of(c.operand(0));
  int64_t offset = 0;
  for (size_t d = 0; d < source.size(); ++d) {
    offset += attrs.start[d] * source[d];
    if (!attrs.stride.empty()) source[d] *= attrs.stride[d];
  }
  return prepare_move(c, sizes_of(c.result()), source, offset, strides_of(c.result()), 0);
}

Prepared prepare_pad(const OpContext& c) {
  const auto& attrs = c.op.as<ir::PadAttrs>();
  const std::vector<int64_t> target = strides_of(c.result());
  int64_t offset = 0;
  for (size_t d = 0; d < target.size(); ++d) offset += attrs.low[d] * target[d];
  return prepare_move(c, sizes_of(c.operand(0)), strides_of(c.operand(0)), 0, target, offset, true);
}

Prepared prepare_trim(const OpContext& c) {
  return prepare_move(c, sizes_of(c.result()), strides_of(c.operand(0)), 0, strides_of(c.result()),
                      0);
}

// The device's part of dimension `dim`; zeros behind the operand's end.
Prepared prepare_shard_slice(const OpContext& c) {
  const auto& attrs = c.op.as<ir::CollectiveAttrs>();
  const auto* group = std::get_if<ir::AxisGroup>(&attrs.group);
  MW_CHECK(group != nullptr, "shard_slice over holders");
  const auto dim = static_cast<size_t>(attrs.dim);
  const int64_t local = c.result().dim(attrs.dim);
  const int64_t start = std::min(c.index(group->axes) * local, c.operand(0).dim(attrs.dim));
  std::vector<int64_t> sizes = sizes_of(c.result());
  sizes[dim] = std::min(local, c.operand(0).dim(attrs.dim) - start);
  const std::vector<int64_t> source = strides_of(c.operand(0));
  return prepare_move(c, sizes, source, start * source[dim], strides_of(c.result()), 0,
                      sizes[dim] < local);
}

Prepared prepare_concat(const OpContext& c) {
  const auto dim = static_cast<size_t>(c.op.as<ir::ConcatAttrs>().dim);
  const std::vector<int64_t> target = strides_of(c.result());
  struct Part {
    StridedPlan plan;
    int64_t offset;  // bytes
  };
  std::vector<Part> parts;
  int64_t start = 0;
  for (size_t i = 0; i < c.op.operands.size(); ++i) {
    const ir::TensorType& type = c.operand(i);
    const auto plan = StridedPlan::make(type.dtype, sizes_of(type), strides_of(type), target);
    if (!plan) return nullptr;
    parts.push_back({*plan, start * target[dim] * dtype_size(type.dtype)});
    start += type.dims[dim].size;
  }
  return make_kernel([parts, threads = c.threads()](const Args& a) {
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].plan.run(a.operands[i], a.out<char>() + parts[i].offset, threads);
    }
  });
}

Prepared prepare_copy(const OpContext& c) {
  return make_kernel([bytes = c.result().bytes().value, threads = c.threads()](const Args& a) {
    if (a.operands[0] == a.results[0]) return;
    parallel_for(threads, bytes, 4 * kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(a.out<char>() + begin, a.in<char>(0) + begin, static_cast<size_t>(end - begin));
    });
  });
}

Prepared prepare_view(const OpContext& c) {
  const int64_t offset = c.op.as<ir::ViewAttrs>().offset * dtype_size(c.result().dtype);
  return make_kernel([offset, bytes = c.result().bytes().value](const Args& a) {
    bring(a.out<char>(), a.in<char>(0) + offset, bytes);
  });
}

Prepared prepare_assemble(const OpContext& c) {
  struct Part {
    int64_t offset, bytes;
  };
  std::vector<Part> parts;
  const int64_t element = dtype_size(c.result().dtype);
  for (size_t i = 1; i < c.op.operands.size(); ++i) {
    parts.push_back(
        {c.op.as<ir::AssembleAttrs>().offsets[i - 1] * element, c.operand(i).bytes().value});
  }
  return make_kernel([parts, bytes = c.result().bytes().value](const Args& a) {
    bring(a.out(), a.in(0), bytes);
    for (size_t i = 0; i < parts.size(); ++i) {
      bring(a.out<char>() + parts[i].offset, a.operands[i + 1], parts[i].bytes);
    }
  });
}

// Elements whose index along `dim` is `kept` or more become `value`.
template <typename T>
Prepared pad_mask_of(const OpContext& c, int dim, int64_t kept) {
  const ir::TensorType& type = c.result();
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= type.dim(d);
  for (int d = dim + 1; d < type.rank(); ++d) inner *= type.dim(d);
  const auto value = static_cast<T>(c.op.as<ir::PadMaskAttrs>().value);
  return make_kernel([value, outer, row = type.dim(dim) * inner, from = kept * inner,
                      bytes = type.bytes().value](const Args& a) {
    bring(a.out(), a.in(0), bytes);
    for (int64_t o = 0; o < outer; ++o)
      std::fill(a.out<T>() + o * row + from, a.out<T>() + (o + 1) * row, value);
  });
}

Prepared prepare_pad_mask(const OpContext& c) {
  const auto& attrs = c.op.as<ir::PadMaskAttrs>();
  const int64_t local = c.result().dim(attrs.dim);
  const int64_t kept =
      attrs.offset.global_size == 0
          ? local
          : std::clamp<int64_t>(attrs.offset.global_size - c.offset(attrs.offset, local), 0, local);
  if (kept == local) return prepare_copy(c);
  switch (c.result().dtype) {
    case DType::kF32: return pad_mask_of<float>(c, attrs.dim, kept);
    case DType::kF64: return pad_mask_of<double>(c, attrs.dim, kept);
    case DType::kI32: return pad_mask_of<int32_t>(c, attrs.dim, kept);
    case DType::kI64: return pad_mask_of<int64_t>(c, attrs.dim, kept);
    case DType::kBool:
    case DType::kU8: return pad_mask_of<uint8_t>(c, attrs.dim, kept);
    case DType::kBF16:
    case DType::kF16:
      if (attrs.value == 0) return pad_mask_of<uint16_t>(c, attrs.dim, kept);
      return nullptr;
  }
  return nullptr;
}

}  // namespace

void register_shapes(KernelTable& table) {
  table.add(OpKind::kBroadcast, prepare_broadcast);
  table.add(OpKind::kReshape, prepare_copy);
  table.add(OpKind::kCopy, prepare_copy);
  table.add(OpKind::kTranspose, prepare_transpose);
  table.add(OpKind::kSlice, prepare_slice);
  table.add(OpKind::kPad, prepare_pad);
  table.add(OpKind::kConcat, prepare_concat);
  table.add(OpKind::kTrim, prepare_trim);
  table.add(OpKind::kShardSlice, prepare_shard_slice);
  table.add(OpKind::kPadMask, prepare_pad_mask);
  table.add(OpKind::kView, prepare_view);
  table.add(OpKind::kAssemble, prepare_assemble);
}

}  // namespace mw::runtime
