# subject: C, C++ and build tools
# tool: cmake
# version: 3.25
# job: configures, builds and tests a C++ project with Ninja
# needs: cmake ninja c++
# before:
cat > CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(demo CXX)
add_executable(demo main.cpp)
enable_testing()
add_test(NAME runs COMMAND demo)
END
printf '#include <iostream>\n#include <thread>\nint main() { std::thread([] { std::cout << "built\\n"; }).join(); }\n' > main.cpp
# job:
cmake -G Ninja -B build . | grep -c 'Build files'
cmake --build build >/dev/null
build/demo
ctest --test-dir build 2>&1 | grep 'tests passed'
