package main

// Kennel's functions.

//go:wasmimport aileron_host log
func hostLog(level, message string)

//go:wasmimport aileron_host http_request
func httpRequest(request string) int32

//go:wasmimport aileron_host http_response_status
func httpStatus() int32

//go:wasmimport aileron_host http_response_size
func httpSize() int32

//go:wasmimport aileron_host http_response_read
func httpRead(to *byte, length int32) int32
