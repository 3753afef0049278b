# Writes the versions found while configuring as lines "NAME: VALUE", for the build manifest that every program shows
# (`--version --verbose`, common/base/version). It is a file rather than definitions, so that a new version of a library
# recompiles only the unit that reads it.

# Returns the version of a Python wheel, taken from the name of its metadata folder; "none" without it. Installing
# another version removes that folder, which triggers a new configure run.
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
  string(REPLACE "\\" "/" flags "${flags}")  # The text becomes a C++ string.
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
libjpeg-turbo: @libjpeg_VERSION@
libpng: @libpng_VERSION@
libwebp: @libwebp_libwebp_VERSION@
")
endfunction()
_titan_write_facts()
