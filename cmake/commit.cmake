# cmake -DSOURCE=FOLDER -DOUT=FILE -P commit.cmake: writes TOK_COMMIT, the commit that SOURCE is at,
# into a header that changes only when the commit does.
find_package(Git QUIET)
set(commit "")
if(GIT_FOUND AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --tags --match v* --abbrev=9 --dirty=+
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "" AND DEFINED ENV{TOK_COMMIT})
  set(commit $ENV{TOK_COMMIT})
endif()
set(text "#pragma once\n#define TOK_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
