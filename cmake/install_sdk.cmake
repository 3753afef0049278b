# Runs at installation: `_plugin_sdk` exports the build in `_build`.
get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
set(folder "$ENV{DESTDIR}${prefix}/lib/titan/sdk")
message(STATUS "Installing: ${folder}")
execute_process(COMMAND "${_plugin_sdk}" --installed "${folder}" "${_build}" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE exported RELATIVE "${folder}" "${folder}/*")
list(TRANSFORM exported PREPEND "${prefix}/lib/titan/sdk/")
list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${exported})
