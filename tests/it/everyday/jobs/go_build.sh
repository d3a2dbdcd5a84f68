# subject: Other languages
# tool: go
# version: 1.19
# job: builds and tests a module
# needs: go
# before:
printf 'module demo\n\ngo 1.19\n' > go.mod
printf 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(6 * 7) }\n' > main.go
printf 'package main\n\nimport "testing"\n\nfunc TestIt(t *testing.T) {}\n' > main_test.go
# job:
go run .
go test ./... | cut -f1,2
