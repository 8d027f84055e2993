# Precompiled headers: what most files include takes a third of their time to compile.
#
# mw_pch(TARGET HEADERS <a> …)     precompiles headers for TARGET.
# mw_pch(TARGET REUSE_FROM OTHER)  lets TARGET use the ones that OTHER made with the same flags.
#
# Nothing without MESHWRIGHT_PCH. What is compiled with another -O must go without
# (SKIP_PRECOMPILE_HEADERS, DISABLE_PRECOMPILE_HEADERS): g++ 12 takes the header and may crash.
set(MW_STD_HEADERS
  <algorithm> <array> <cmath> <cstdint> <functional> <map> <memory> <numeric> <optional> <set> <span>
  <string> <string_view> <tuple> <utility> <variant> <vector> <fmt/core.h> <fmt/format.h> <fmt/ranges.h>)
set(CMAKE_PCH_WARN_INVALID OFF)

function(mw_pch target)
  if(NOT MESHWRIGHT_PCH)
    return()
  endif()
  cmake_parse_arguments(PCH "" "REUSE_FROM" "HEADERS" ${ARGN})
  # ccache reads what a precompiled header was made from only with this flag.
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>")
  # A program is compiled as PIE by default, the library that made the header as PIC.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  if(PCH_REUSE_FROM)
    target_precompile_headers(${target} REUSE_FROM ${PCH_REUSE_FROM})
  else()
    target_precompile_headers(${target} PRIVATE ${PCH_HEADERS})
  endif()
endfunction()
