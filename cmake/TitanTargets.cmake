# Functions that declare targets: one library per folder, with its dependencies listed.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Precompiled headers need the first two sloppiness flags to be cached; the language of messages does not change
  # objects. Paths below the checkout are hashed relative to it, and the build folder's location is not hashed, so a
  # second checkout reuses what the first one compiled. Messages still contain absolute paths.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,locale
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_ABSSTDERR=1 ${CCACHE_PROGRAM})
endif()

add_library(titan_flags INTERFACE)
target_compile_options(titan_flags INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers -fno-omit-frame-pointer)
target_include_directories(titan_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(titan_flags INTERFACE TITAN_VERSION="${PROJECT_VERSION}")
if(TITAN_SANITIZER STREQUAL "address")
  # A UBSan finding ends the program; otherwise no test would fail for it. The checks at every use of a pointer doubled
  # the compile time, and AddressSanitizer finds most of the same errors; the preset `fuzz` has them.
  # GCC reports instrumented code in the standard library's regular expressions as uninitialized values (GCC bug
  # 105616).
  target_compile_options(titan_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=null,alignment,vptr,object-size
                         -fno-sanitize-recover=all -Wno-maybe-uninitialized)
  target_link_options(titan_flags INTERFACE -fsanitize=address,undefined)
elseif(TITAN_SANITIZER STREQUAL "fuzzer")
  # For the program `fuzz` (tests/fuzz), compiled by clang with coverage counters. Any finding ends the program.
  target_compile_options(titan_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow
                         -fno-sanitize-recover=all -fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/tests/fuzz/not_watched.txt)
  target_link_options(titan_flags INTERFACE -fsanitize=address,undefined)
elseif(TITAN_SANITIZER STREQUAL "thread")
  # Debian's libraries are not instrumented, so their headers must not use the layouts for instrumented code (Protobuf's
  # maps have a different one). The standard library's headers must.
  target_compile_options(titan_flags INTERFACE -fsanitize=thread -U__SANITIZE_THREAD__ -D_GLIBCXX_TSAN=1
                         -DTITAN_THREAD_SANITIZER)
  target_link_options(titan_flags INTERFACE -fsanitize=thread)
  add_library(titan_tsan_options OBJECT ${CMAKE_CURRENT_LIST_DIR}/tsan_options.cc)
endif()

# For code that runs once, or once per request or step: tests, and programs except for what processes every byte or
# operator. Optimizing such code took a quarter of its compile time.
set(TITAN_COLD_FLAGS -O1)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(TITAN_COLD_FLAGS "")
endif()
# The definitions of GTest::gtest. A precompiled header fits only files with the same definitions, and some files of
# tests/ do not link GoogleTest.
set(TITAN_TEST_DEFINITIONS GTEST_HAS_PTHREAD=1)

function(_titan_configure target torch cold)
  titan_unity(${target})
  if(cold)
    target_compile_options(${target} PRIVATE ${TITAN_COLD_FLAGS})
  endif()
  get_target_property(type ${target} TYPE)
  if(TARGET titan_tsan_options AND type STREQUAL "EXECUTABLE")
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:titan_tsan_options>)
  endif()
  set(pch titan_torch_pch)
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/tests/" AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/bench")
    set(pch titan_torch_test_pch)
    target_compile_options(${target} PRIVATE ${TITAN_COLD_FLAGS})
    target_compile_definitions(${target} PRIVATE ${TITAN_TEST_DEFINITIONS})
  endif()
  if(torch)
    target_link_libraries(${target} PUBLIC titan_torch)
    target_precompile_headers(${target} REUSE_FROM ${pch})
    # The header was compiled with -fPIC. Executables would get -fPIE, with which the compiler rejects this header.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

# titan_library(NAME [TORCH] [COLD] SOURCES files... DEPS targets...)
# TORCH: may include LibTorch and shares its precompiled header. Such a target never links gRPC or Protobuf.
# COLD: compiled for short compile time instead of speed (TITAN_COLD_FLAGS).
function(titan_library name)
  cmake_parse_arguments(ARG "TORCH;COLD" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC titan_flags ${ARG_DEPS})
  _titan_configure(${name} "${ARG_TORCH}" "${ARG_COLD}")
endfunction()

# titan_binary(NAME [TORCH] [COLD] SOURCES files... DEPS targets...): an executable in bin/.
function(titan_binary name)
  cmake_parse_arguments(ARG "TORCH;COLD" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE titan_flags ${ARG_DEPS})
  _titan_configure(${name} "${ARG_TORCH}" "${ARG_COLD}")
endfunction()

# titan_test_binary(NAME [TORCH] [LONG] SOURCES files... DEPS targets...): an executable in tests/ that a script test, a
# benchmark or a reader of docs/ starts. LONG: only the target titan_long_tests builds it.
function(titan_test_binary name)
  cmake_parse_arguments(ARG "LONG" "" "" ${ARGN})
  titan_binary(${name} ${ARG_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(ARG_LONG)
    titan_exclude_from_all(${name})
  endif()
endfunction()

# titan_test(NAME [TORCH] [SERIAL | CROWD] [LONG] SOURCES files... DEPS targets... [LABEL fast|full|faults|gpu] [TIMEOUT seconds] [ARGS ...])
# One ctest entry for the whole GoogleTest program. SERIAL: measures time, so it runs alone. CROWD: has many processes
# or threads, or some with deadlines. At most one crowd per core runs at a time, since more would only slow each other
# down; tests that only compute may run at the same time. LONG: not part of the check of every commit
# (docs/decisions/tests.md), but of `deploy/test.sh --all`.
function(titan_test name)
  cmake_parse_arguments(ARG "TORCH;SERIAL;CROWD;LONG" "LABEL;TIMEOUT" "SOURCES;DEPS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE titan_flags ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  _titan_configure(${name} "${ARG_TORCH}" FALSE)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  _titan_test_properties(${name} "${ARG_LABEL}" "${ARG_TIMEOUT}" "${ARG_SERIAL}" "${ARG_CROWD}" "${ARG_LONG}" "${name}")
endfunction()

# titan_entry(NAME PROGRAM [SERIAL | CROWD] [LONG] [LABEL ..] [TIMEOUT ..] [ARGS ...]): another ctest entry of a
# titan_test's program, for suites that compile together and run separately, or for a longer run of the same suites.
function(titan_entry name program)
  cmake_parse_arguments(ARG "SERIAL;CROWD;LONG" "LABEL;TIMEOUT" "ARGS" ${ARGN})
  add_test(NAME ${name} COMMAND ${program} ${ARG_ARGS})
  _titan_test_properties(${name} "${ARG_LABEL}" "${ARG_TIMEOUT}" "${ARG_SERIAL}" "${ARG_CROWD}" "${ARG_LONG}" "${program}")
endfunction()

# titan_script_test(NAME SCRIPT [SERIAL | CROWD] [LONG] [LABEL ..] [TIMEOUT ..] [ARGS ...] [NEEDS targets...]): a Python
# or shell test of the built programs. NEEDS: other targets of the build that it uses.
# Environment: TITAN_BIN (built programs), TITAN_SOURCE (this tree), TITAN_DEPS. Python is that of .deps/venv, which has
# the oracles.
function(titan_script_test name script)
  cmake_parse_arguments(ARG "SERIAL;CROWD;LONG" "LABEL;TIMEOUT" "ARGS;NEEDS" ${ARGN})
  if(script MATCHES "\\.py$")
    set(command ${TITAN_DEPS}/venv/bin/python)
  else()
    set(command bash)
  endif()
  add_test(NAME ${name} COMMAND ${command} ${CMAKE_CURRENT_SOURCE_DIR}/${script} ${ARG_ARGS} COMMAND_EXPAND_LISTS)
  _titan_test_properties(${name} "${ARG_LABEL}" "${ARG_TIMEOUT}" "${ARG_SERIAL}" "${ARG_CROWD}" "${ARG_LONG}" "${ARG_NEEDS}")
endfunction()

# Targets that `ctest -L fast` needs, and targets that only long entries and benchmarks need, which `all` does not
# build.
add_custom_target(titan_fast_tests)
add_custom_target(titan_long_tests)

# titan_exclude_from_all(TARGET...): only titan_long_tests builds these targets.
function(titan_exclude_from_all)
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  add_dependencies(titan_long_tests ${ARGN})
endfunction()

# Returns the part of the tree that this folder's tests cover: common, controller, node, rank, or the folder below
# tests/.
function(_titan_test_area result)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/tests OUTPUT_VARIABLE path)
  string(REGEX REPLACE "^worker/" "" path ${path})
  string(REGEX REPLACE "/.*" "" area ${path})
  set(${result} ${area} PARENT_SCOPE)
endfunction()

# Labels an entry with that part of the tree, and adds what it needs to the target titan_AREA_tests, for
# `deploy/test.sh --part AREA`.
function(_titan_join_test_area name long needs)
  _titan_test_area(area)
  set_property(TEST ${name} APPEND PROPERTY LABELS ${area})
  if(NOT TARGET titan_${area}_tests)
    add_custom_target(titan_${area}_tests)
  endif()
  if(needs AND NOT long)
    add_dependencies(titan_${area}_tests ${needs})
  endif()
endfunction()

cmake_host_system_information(RESULT TITAN_CORES QUERY NUMBER_OF_LOGICAL_CORES)

# Lets as many crowds run at once as there are cores. Each lock serializes a chain of tests; entries are assigned
# round-robin.
function(_titan_join_crowd name)
  get_property(dealt GLOBAL PROPERTY TITAN_CROWDS_DEALT)
  math(EXPR crowd "0${dealt} % ${TITAN_CORES}")
  math(EXPR dealt "0${dealt} + 1")
  set_property(GLOBAL PROPERTY TITAN_CROWDS_DEALT ${dealt})
  set_tests_properties(${name} PROPERTIES RESOURCE_LOCK crowd${crowd} COST 1000)  # The longest chains; ctest starts them first.
endfunction()

function(_titan_test_properties name label timeout serial crowd long needs)
  if(NOT label)
    set(label fast)
  endif()
  if(long)
    list(APPEND label long)
    if(TARGET ${name})
      titan_exclude_from_all(${name})
    elseif(needs)
      add_dependencies(titan_long_tests ${needs})
    endif()
  elseif(label STREQUAL "fast" AND needs)
    add_dependencies(titan_fast_tests ${needs})
  endif()
  if(NOT timeout)
    set(timeout 120)
  endif()
  set(sanitizer "")
  if(TITAN_SANITIZER)
    math(EXPR timeout "${timeout} * 3")  # Instrumented programs run that much slower.
    set(sanitizer "TITAN_SANITIZER=${TITAN_SANITIZER};")
  endif()
  # Waiting OpenMP threads sleep. Next to another test, spinning threads would take the time of those that they wait
  # for.
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT ${timeout} ENVIRONMENT
    "${sanitizer}TITAN_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};TITAN_SOURCE=${PROJECT_SOURCE_DIR};TITAN_DEPS=${TITAN_DEPS};PYTHONDONTWRITEBYTECODE=1;HF_HUB_OFFLINE=1;OMP_WAIT_POLICY=passive")
  _titan_join_test_area(${name} "${long}" "${needs}")
  if(serial)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
  if(crowd)
    _titan_join_crowd(${name})
  endif()
endfunction()
