//go:build !wasip1

package main

// A native program has no host: the bench compares how fast one starts.

func hostLog(level, message string)         {}
func httpRequest(request string) int32      { return -1 }
func httpStatus() int32                     { return -1 }
func httpSize() int32                       { return -1 }
func httpRead(to *byte, length int32) int32 { return -1 }
