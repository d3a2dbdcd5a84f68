module mail

go 1.24
