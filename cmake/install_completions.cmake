# Runs at installation: `_completed`, which is titanctl, writes its completions to the folders below the prefix where
# bash, zsh and fish look.
get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
foreach(place bash:bash-completion/completions/titanctl zsh:zsh/vendor-completions/_titanctl fish:fish/vendor_completions.d/titanctl.fish)
  string(REPLACE ":" ";" place "${place}")
  list(GET place 0 shell)
  list(GET place 1 file)
  set(installed "$ENV{DESTDIR}${prefix}/share/${file}")
  get_filename_component(folder "${installed}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  message(STATUS "Installing: ${installed}")
  execute_process(COMMAND "${_completed}" completion ${shell} OUTPUT_FILE "${installed}" COMMAND_ERROR_IS_FATAL ANY)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${prefix}/share/${file}")
endforeach()
