// A connector in Go: it lists mail of a server that wants a credential.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

type call struct {
	Op   string `json:"op"`
	Args struct {
		Count    int       `json:"count"`
		Server   string    `json:"server"`
		Messages []message `json:"messages"`
	} `json:"args"`
}

type message struct {
	From    string `json:"from"`
	Subject string `json:"subject"`
	Unread  bool   `json:"unread"`
}

type summary struct {
	Count  int            `json:"count"`
	Unread int            `json:"unread"`
	From   map[string]int `json:"from"`
}

// What the program prints.
type document struct {
	Output any    `json:"output,omitempty"`
	Error  *fault `json:"error,omitempty"`
}

type fault struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

func main() {
	var call call
	if err := json.NewDecoder(os.Stdin).Decode(&call); err != nil {
		fmt.Fprintln(os.Stderr, "input:", err)
		os.Exit(2)
	}
	var document document
	switch call.Op {
	case "list":
		document = list(call.Args.Server, call.Args.Count)
	case "summarize":
		document.Output = summarize(call.Args.Messages)
	case "panic":
		var none []int
		fmt.Println(none[call.Args.Count])
	case "hoard":
		var all [][]byte
		for {
			more := make([]byte, 1<<20)
			for i := range more {
				more[i] = 1
			}
			all = append(all, more)
		}
	default:
		document.Error = &fault{"unknown_operation", call.Op}
	}
	json.NewEncoder(os.Stdout).Encode(document)
}

// Asks a server for messages.
func list(server string, count int) document {
	if server == "" {
		server = "https://mail.example"
	}
	request, _ := json.Marshal(map[string]any{
		"url":        fmt.Sprintf("%s/messages?count=%d", server, count),
		"headers":    map[string]string{"accept": "application/json", "authorization": "a guess"},
		"credential": "api_key",
	})
	if code := httpRequest(string(request)); code != 0 {
		return document{Error: &fault{"request", fmt.Sprint(code)}}
	}
	body := make([]byte, httpSize())
	for read := 0; read < len(body); {
		read += int(httpRead(&body[read], int32(len(body)-read)))
	}
	hostLog("debug", fmt.Sprintf("status %d, %d bytes", httpStatus(), len(body)))
	var answer struct {
		Messages []message `json:"messages"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return document{Error: &fault{"answer", err.Error()}}
	}
	return document{Output: summarize(answer.Messages)}
}

func summarize(messages []message) summary {
	summary := summary{Count: len(messages), From: map[string]int{}}
	for _, message := range messages {
		summary.From[message.From]++
		if message.Unread {
			summary.Unread++
		}
	}
	return summary
}
