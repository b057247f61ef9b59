# Takes the C++ blocks out of a page. Prints a line `KIND FILE` for each and writes the file:
#   ```cpp       with a main function in it: a program, as it is
#   ```cpp run   statements that run: they become the body of main
#   ```cpp       anything else: a fragment, compiled inside a function behind the declarations of <page>.hpp
# usage: awk -v page=store -v out=DIR -f blocks.awk PAGE.md
function finish() {
  file = out "/" page "." ++count ".cpp"
  kind = body ~ /int main\(/ ? "program" : run ? "run" : "fragment"
  if (kind == "program") text = body
  if (kind == "run")
    text = "#include <nanomc.hpp>\n#include <cstdio>\n#include <cstring>\n#include <vector>\n\nint main() try {\n" place body \
           "} catch (const nmc::Error& error) {\n  std::fprintf(stderr, \"%s\\n\", error.what());\n  return 1;\n}\n"
  if (kind == "fragment")
    text = "#include \"" page ".hpp\"\n\nvoid fragment();\nvoid fragment() {\n" place body "}\n"
  if (kind == "program") text = "#line " first " \"" FILENAME "\"\n" text
  printf "%s", text > file
  close(file)
  print kind, file
}
/^```cpp/ && !inside { inside = 1; run = $2 == "run"; body = ""; first = NR + 1; place = "#line " first " \"" FILENAME "\"\n"; next }
/^```/ && inside { inside = 0; finish(); next }
inside { body = body $0 "\n" }
