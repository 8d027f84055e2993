// Looking for NaN and infinities.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace mw::execute {

// Index of the first element that is NaN or infinite; none for types without such numbers.
std::optional<int64_t> first_non_finite(DType dtype, int64_t elements, const void* data);
// "nan" or "inf", "-inf": what the element is.
const char* non_finite_name(DType dtype, const void* data, int64_t element);

// Whether an op is meant to give infinities: constants and masks of an infinite value, maxima and
// minima over nothing.
bool may_be_infinite(const ir::Op& op);

}  // namespace mw::execute
