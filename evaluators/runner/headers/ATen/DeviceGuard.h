// Without the overload for tensor lists, whose header takes longer to compile than all the others together.
#pragma once
#pragma GCC system_header

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace at {

inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}

inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
  return tensor ? device_of(*tensor) : std::nullopt;
}

} // namespace at
