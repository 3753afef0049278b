# Runs at installation, when the prefix is known, which `_unit` contains as @PREFIX@.
get_filename_component(PREFIX "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
get_filename_component(name "${_unit}" NAME)
set(installed "$ENV{DESTDIR}${PREFIX}/lib/systemd/system/${name}")
message(STATUS "Installing: ${installed}")
configure_file("${_unit}" "${installed}" @ONLY)
list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${PREFIX}/lib/systemd/system/${name}")
