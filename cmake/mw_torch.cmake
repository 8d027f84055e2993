# libtorch out of the torch wheel, for the one room that may see it.
#
# mw_find_torch()      makes the imported target mw_torch: ATen's headers as system headers,
#                      libtorch_cpu and libc10 with their rpath. Nothing of CUDA is looked for.
#                      ATen's header takes 11 s a file, 2 s precompiled.
#
# The wheel is searched in build/venv, where scripts/setup installs it; -DMESHWRIGHT_TORCH_DIR=DIR
# names another, DIR being the folder that holds lib/libtorch_cpu.so and include/ATen.
set(MESHWRIGHT_TORCH_DIR "" CACHE PATH "Folder of the torch wheel (empty: the one in build/venv)")

function(mw_find_torch)
  if(TARGET mw_torch)
    return()
  endif()
  set(dir "${MESHWRIGHT_TORCH_DIR}")
  if(NOT dir)
    file(GLOB found "${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch")
    list(POP_BACK found dir)
  endif()
  foreach(part lib/libtorch_cpu.so lib/libc10.so include/ATen/ATen.h)
    if(NOT EXISTS "${dir}/${part}")
      message(FATAL_ERROR "MESHWRIGHT_TORCH_DIR='${dir}' has no ${part}. Run scripts/setup, or give "
        "-DMESHWRIGHT_TORCH_DIR=<site-packages/torch>, or -DMESHWRIGHT_RUNTIME=OFF to do without.")
    endif()
  endforeach()

  # Both C++ ABIs have been on PyPI; fmt, doctest and the rest here have the new one.
  file(STRINGS "${dir}/lib/libc10.so" new_abi REGEX "NSt7__cxx11" LIMIT_COUNT 1)
  if(NOT new_abi)
    message(FATAL_ERROR "${dir} is built with _GLIBCXX_USE_CXX11_ABI=0; it must be 1, which the "
      "torch wheels from 2.7 on are. Install the version named in scripts/requirements.txt.")
  endif()
  file(STRINGS "${dir}/version.py" version REGEX "^__version__ = ")
  string(REGEX REPLACE "^.*= *['\"]([^'\"]*)['\"].*$" "\\1" version "${version}")
  message(STATUS "libtorch ${version}: ${dir}")

  foreach(name torch_cpu c10)
    add_library(mw_${name} SHARED IMPORTED GLOBAL)
    set_target_properties(mw_${name} PROPERTIES
      IMPORTED_LOCATION "${dir}/lib/lib${name}.so" IMPORTED_SONAME "lib${name}.so")
  endforeach()
  add_library(mw_torch INTERFACE IMPORTED GLOBAL)
  # Behind the system's headers: the wheel has an fmt of its own, of another version than ours.
  foreach(include "${dir}/include" "${dir}/include/torch/csrc/api/include")
    target_compile_options(mw_torch INTERFACE "SHELL:-idirafter \"${include}\"")
  endforeach()
  target_link_libraries(mw_torch INTERFACE mw_torch_cpu mw_c10)
  # A CUDA build's libtorch_cpu names CUDA libraries that only its own rpath finds.
  target_link_options(mw_torch INTERFACE "LINKER:--allow-shlib-undefined")
endfunction()
