# mw_embed(TARGET NAMESPACE VARIABLE FILE…)
#
# Puts the files' text, one behind the other, into TARGET as `extern const std::string_view VARIABLE` of
# NAMESPACE. The source is made at build time, and made again when a file changes.
set(MW_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(text "")
  foreach(file IN LISTS FILES)
    file(READ "${file}" part)
    string(APPEND text "${part}")
  endforeach()
  file(WRITE "${OUTPUT}" "#include <string_view>\nnamespace ${NAMESPACE} {\n"
    "extern const std::string_view ${VARIABLE};\n"
    "const std::string_view ${VARIABLE} = R\"mw_embed(${text})mw_embed\";\n}\n")
  return()
endif()

function(mw_embed target namespace variable)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${variable}.cc")
  set(files "")
  foreach(file IN LISTS ARGN)
    list(APPEND files "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  endforeach()
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DFILES=${files}" "-DOUTPUT=${output}" "-DNAMESPACE=${namespace}"
      "-DVARIABLE=${variable}" -P "${MW_EMBED_SCRIPT}"
    DEPENDS ${files} "${MW_EMBED_SCRIPT}" VERBATIM)
  target_sources(${target} PRIVATE "${output}")
endfunction()
