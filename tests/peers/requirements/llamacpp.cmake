# Samplers are in libllama, which needs libggml-base. The package would compile its backend for processors, its library of
# chats and command lines, and its models of images besides, all with optimisation: three times the work. Included after
# each project(), as the package's own CMakeLists.txt sets LLAMA_BUILD_COMMON anew.
set(GGML_CPU OFF)
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)
set(CMAKE_C_FLAGS_RELEASE "-O1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
