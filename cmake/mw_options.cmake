# Compiler settings shared by every room.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_UNITY_BUILD ${MESHWRIGHT_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Release keeps -O2: kernels ask for -O3 themselves. MW_CHECK never compiles away.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
if(MESHWRIGHT_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
endif()

add_library(mw_flags INTERFACE)
# -ffp-contract=off: a product and a sum are fused only where a kernel says so, so that the same
# expression has the same bits in every room and at every place in a shard (docs/layout-invariance.md).
# g++ 12 takes the unused places of absl's inlined vectors, which a copy copies too, for values.
target_compile_options(mw_flags INTERFACE -Wall -Wextra -ffp-contract=off
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
if(MESHWRIGHT_UNITY)
  # A class of one file may hold what that file alone sees; joined files look like headers to g++ here.
  target_compile_options(mw_flags INTERFACE "$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>")
endif()
if(MESHWRIGHT_WERROR)
  # g++ 12's warnings that follow values through inlined code are often wrong in std::string, and whether
  # they come depends on what is inlined, even on the length of a path in a macro: seen, no errors. So is
  # its word about the undefined operand of AVX-512 intrinsics (GCC PR 105593), which xxhash.h inlines.
  target_compile_options(mw_flags INTERFACE -Werror "$<$<CXX_COMPILER_ID:GNU>:-Wno-error=array-bounds;\
-Wno-error=restrict;-Wno-error=stringop-overflow;-Wno-error=stringop-overread;\
-Wno-error=dangling-pointer;-Wno-error=use-after-free;-Wno-error=nonnull;-Wno-error=free-nonheap-object;\
-Wno-error=uninitialized>")
endif()
if(MESHWRIGHT_NATIVE)
  target_compile_options(mw_flags INTERFACE -march=native)
endif()
if(MESHWRIGHT_SANITIZE STREQUAL "address")
  # A null or freed object is AddressSanitizer's find; UBSan's own checks of it, one at every access,
  # make a test file four times as dear to compile. mw_room drops the alignment check of tests too.
  # The frames that detect use after return are aligned to 32 bytes (GCC PR 110027): no wider vectors.
  target_compile_options(mw_flags INTERFACE -fsanitize=address,undefined
    -fno-sanitize=null,object-size,vptr -fno-omit-frame-pointer
    "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>>:\
-mprefer-vector-width=256;-mmove-max=256;-mstore-max=256>")
  target_link_options(mw_flags INTERFACE -fsanitize=address,undefined)
elseif(MESHWRIGHT_SANITIZE STREQUAL "thread")
  target_compile_options(mw_flags INTERFACE -fsanitize=thread)
  target_link_options(mw_flags INTERFACE -fsanitize=thread)
elseif(MESHWRIGHT_SANITIZE)
  message(FATAL_ERROR "MESHWRIGHT_SANITIZE=${MESHWRIGHT_SANITIZE}: must be address or thread")
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # A precompiled header is cached only with these two relaxations.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE}")
endif()
find_program(MOLD mold)
if(MOLD)
  target_link_options(mw_flags INTERFACE -fuse-ld=mold)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(absl REQUIRED)
find_package(doctest REQUIRED)
if(MESHWRIGHT_TESTS)
  # doctest's own code with its main, for every test program.
  add_library(mw_doctest STATIC "${CMAKE_CURRENT_SOURCE_DIR}/tests/doctest_main.cc")
  target_link_libraries(mw_doctest PUBLIC mw_flags doctest::doctest)
endif()
