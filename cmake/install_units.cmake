# Runs at installation: only then is the prefix known, which the units of `units` name as @PREFIX@.
get_filename_component(PREFIX "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
set(folder "$ENV{DESTDIR}${PREFIX}/lib/systemd/system")
foreach(name titan-controller.service titan-worker.service)
  message(STATUS "Installing: ${folder}/${name}")
  configure_file("${units}/${name}" "${folder}/${name}" @ONLY)
endforeach()
