# What was found while configuring, for the build manifest that every program shows (`--version --verbose`, common/base/version): lines
# "NAME: VALUE". A file, not definitions, so that no other unit is compiled again when a library has a new version.

# The version of a Python wheel, which the folder of its metadata is named after; "none" without it. Another version takes that folder away,
# which configures again.
function(_titan_wheel_version name result)
  file(GLOB metadata ${TITAN_SITE_PACKAGES}/${name}-*.dist-info/METADATA)
  set(version none)
  if(metadata MATCHES "/${name}-([^/;]+)\\.dist-info")
    set(version ${CMAKE_MATCH_1})
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${metadata})
  endif()
  set(${result} ${version} PARENT_SCOPE)
endfunction()

function(_titan_write_facts)
  set(build_type ${CMAKE_BUILD_TYPE})
  string(TOUPPER "${build_type}" upper)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${upper}}" flags)
  string(REPLACE "\\" "/" flags "${flags}")  # It becomes a string of C++.
  string(REPLACE "\"" "'" flags "${flags}")
  set(sanitizer none)
  if(TITAN_SANITIZER)
    set(sanitizer ${TITAN_SANITIZER})
  endif()
  set(libtorch none)
  if(TITAN_TORCH)
    _titan_wheel_version(torch libtorch)
  endif()
  set(arrow none)
  if(TARGET titan_arrow)
    _titan_wheel_version(pyarrow arrow)
  endif()
  set(cuda no)
  if(TARGET titan_cuda)
    set(cuda yes)
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/common/base/version/build_facts.txt @ONLY CONTENT "build type: @build_type@ (@flags@)
compiler: @CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@
sanitizer: @sanitizer@
CUDA: @cuda@
LibTorch: @libtorch@
Arrow: @arrow@
gRPC: @gRPC_VERSION@
protobuf: @Protobuf_VERSION@
abseil: @absl_VERSION@
OpenSSL: @OPENSSL_VERSION@
SQLite: @SQLite3_VERSION@
curl: @CURL_VERSION_STRING@
expat: @EXPAT_VERSION_STRING@
zlib: @ZLIB_VERSION_STRING@
zstd: @zstd_VERSION@
pcre2: @pcre2_VERSION@
yaml-cpp: @yaml-cpp_VERSION@
toml++: @tomlplusplus_VERSION@
JSON: @nlohmann_json_VERSION@
CLI11: @CLI11_VERSION@
cpp-httplib: @cpp_httplib_VERSION@
elfutils: @libdw_VERSION@
")
endfunction()
_titan_write_facts()
