# Unity builds: up to this many files of a target are compiled as one, so that templates of LibTorch, gRPC and the
# standard library are instantiated once for all of them (docs/decisions/build.md). 0 compiles every file alone, as
# clang-tidy and editors do.
#
# Does not use CMake's UNITY_BUILD, which includes files by absolute paths, so that another checkout could not reuse
# cached objects.
set(TITAN_UNITY 12 CACHE STRING "Files compiled together, by target; 0 compiles each alone")

# Joins the sources of `target` at the end of its folder's CMakeLists.txt, which may set properties of files after the
# target. The property TITAN_SOURCES keeps the original list.
function(titan_unity target)
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES TITAN_SOURCES "${sources}")
  if(TITAN_UNITY GREATER 1)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL _titan_join [[${target}]])")
  endif()
endfunction()

# A file with custom flags, or with SKIP_UNITY_BUILD_INCLUSION, is compiled alone.
function(_titan_excluded_from_unity source result)
  foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FLAGS INCLUDE_DIRECTORIES)
    get_source_file_property(value ${source} ${property})
    if(value)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# Names sources relative to the project's or the build's root, which are on the include path (titan_flags; proto/ for
# generated files). Writes the file only when it changes.
function(_titan_write_unit path)
  set(text "")
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    set(root ${PROJECT_SOURCE_DIR})
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} built)
    if(built)
      set(root ${PROJECT_BINARY_DIR})
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${root})
    string(APPEND text "#include \"${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${path} CONTENT "${text}" @ONLY)
endfunction()

function(_titan_join target)
  get_target_property(sources ${target} SOURCES)
  set(joined)
  foreach(source IN LISTS sources)
    _titan_excluded_from_unity(${source} alone)
    if(source MATCHES "\\.cc$" AND NOT alone)
      list(APPEND joined ${source})
    endif()
  endforeach()
  list(LENGTH joined count)
  if(count LESS 2)
    return()
  endif()
  list(REMOVE_ITEM sources ${joined})
  math(EXPR last "${count} - 1")
  foreach(first RANGE 0 ${last} ${TITAN_UNITY})
    list(SUBLIST joined ${first} ${TITAN_UNITY} files)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}.dir/unit_${first}.cc)
    _titan_write_unit(${unit} ${files})
    list(APPEND sources ${unit})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
endfunction()
