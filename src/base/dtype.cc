#include "base/dtype.h"

#include <array>

namespace mw {
namespace {

struct Row {
  std::string_view name;
  int64_t size;
  bool floating;
};

constexpr std::array<Row, 8> kRows = {{{"bool", 1, false},
                                       {"u8", 1, false},
                                       {"i32", 4, false},
                                       {"i64", 8, false},
                                       {"bf16", 2, true},
                                       {"f16", 2, true},
                                       {"f32", 4, true},
                                       {"f64", 8, true}}};

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t dtype_size(DType dtype) { return row(dtype).size; }
std::string_view dtype_name(DType dtype) { return row(dtype).name; }
bool is_floating(DType dtype) { return row(dtype).floating; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace mw
