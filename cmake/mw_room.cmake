# mw_room(NAME SOURCES a.cc … [DEPS room …] [LINK target …] [PCH <header> …] [TESTS a_test.cc …]
#         [OWN_TEST_PCH])
#
# Makes the static library mw_NAME (link it as mw::NAME) and, with MESHWRIGHT_TESTS, one doctest
# binary mw_NAME_test. DEPS are rooms; PCH are headers to precompile beside the standard ones, OWN_TEST_PCH
# leaves those of the tests to the caller;
# tests/rooms_test reads this call and holds every #include
# of the room against it.
include("${CMAKE_CURRENT_LIST_DIR}/mw_pch.cmake")

# For what is compiled longer than it runs: -O1 takes two thirds of the time.
function(mw_quick_to_compile target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O1>")
endfunction()

function(mw_room name)
  cmake_parse_arguments(ROOM "OWN_TEST_PCH" "" "SOURCES;DEPS;LINK;PCH;TESTS" ${ARGN})
  if(ROOM_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "mw_room(${name}): unknown arguments ${ROOM_UNPARSED_ARGUMENTS}")
  endif()
  foreach(dep IN LISTS ROOM_DEPS)
    if(NOT TARGET mw::${dep})
      message(FATAL_ERROR "mw_room(${name}): DEPS name ${dep}, which is no room that is built before "
        "it; correct DEPS, or the order of MW_ROOMS in the root CMakeLists.txt")
    endif()
  endforeach()
  add_library(mw_${name} STATIC ${ROOM_SOURCES})
  add_library(mw::${name} ALIAS mw_${name})
  target_include_directories(mw_${name} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(mw_${name} PUBLIC mw_flags fmt::fmt absl::inlined_vector)
  foreach(dep IN LISTS ROOM_DEPS)
    target_link_libraries(mw_${name} PUBLIC mw::${dep})
  endforeach()
  if(ROOM_LINK)
    target_link_libraries(mw_${name} PRIVATE ${ROOM_LINK})
  endif()
  if(ROOM_PCH OR name STREQUAL "base")
    mw_pch(mw_${name} HEADERS ${MW_STD_HEADERS} ${ROOM_PCH})
  else()
    mw_pch(mw_${name} REUSE_FROM mw_base)
  endif()
  if(MESHWRIGHT_TESTS AND ROOM_TESTS)
    add_executable(mw_${name}_test ${ROOM_TESTS})
    target_link_libraries(mw_${name}_test PRIVATE mw::${name} mw_doctest)
    if(NOT ROOM_OWN_TEST_PCH)
      mw_quick_to_compile(mw_${name}_test)
    endif()
    if(MESHWRIGHT_SANITIZE STREQUAL "address")
      target_compile_options(mw_${name}_test PRIVATE -fno-sanitize=alignment)
    endif()
    if(name STREQUAL "base")
      mw_pch(mw_${name}_test HEADERS ${MW_STD_HEADERS} <doctest/doctest.h>)
    elseif(NOT ROOM_OWN_TEST_PCH)
      mw_pch(mw_${name}_test REUSE_FROM mw_base_test)
    endif()
    add_test(NAME ${name} COMMAND mw_${name}_test)
  endif()
endfunction()
