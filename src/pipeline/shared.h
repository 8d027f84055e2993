// Shared: a value that many hold and few change. Copies share it; a step's buffers are as many as
// microbatches, their types and shardings as few as a stage's values.
#pragma once

#include <memory>
#include <utility>

namespace mw::pipeline {

template <typename T>
class Shared {
 public:
  Shared() = default;  // T(), which takes no memory
  explicit Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}
  Shared& operator=(T value) {
    value_ = std::make_shared<T>(std::move(value));
    return *this;
  }

  const T& get() const { return value_ == nullptr ? standard() : *value_; }
  operator const T&() const { return get(); }  // NOLINT: reads like the value itself.
  const T* operator->() const { return &get(); }
  // To change this holder's value alone.
  T& edit() {
    if (value_.use_count() != 1) value_ = std::make_shared<T>(get());
    return *value_;
  }
  friend bool operator==(const Shared& a, const Shared& b) {
    return a.value_ == b.value_ || a.get() == b.get();
  }

 private:
  static const T& standard() {
    static const T value;
    return value;
  }
  std::shared_ptr<T> value_;
};

}  // namespace mw::pipeline
