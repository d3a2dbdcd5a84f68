module issues

go 1.24
