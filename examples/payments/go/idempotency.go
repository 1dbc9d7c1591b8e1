package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"strings"

	"github.com/lib/pq"
)

const reserve = `
	SELECT key, outcome, token, attempt, status_code, headers, body,
	       idem_provider_key(client => $1, key => key)
	  FROM idem_parse_key($2) AS key,
	       idem_reserve(client => $1, key => key,
	                    request => jsonb_build_object('path', $3::text, 'body', $4::jsonb),
	                    lease => $5::interval, retention => $6::interval)`

const complete = `
	SELECT idem_complete_bytes(client => $1, key => $2, token => $3, status_code => $4, body => $5, headers => $6::jsonb)`

// Of an answer these are not kept: the first is the first caller's alone.
var notKept = map[string]bool{"Set-Cookie": true, "Content-Length": true, "Date": true}

// Idempotency is middleware: what is requested many times with one Idempotency-Key happens once.
// Without a lease all the work is in this database; with one ("60 s") it leaves it, to a payment
// provider, say. Client tells who was authenticated. The handler finds a Call by CallOf.
type Idempotency struct {
	DB               *sql.DB
	Client           func(*http.Request) string
	Lease, Retention string // empty: no lease; the server's setting
}

// Call is one attempt at a request, with the transaction of its answer.
type Call struct {
	ProviderKey string
	Attempt     int
	db          *sql.DB
	tx          *sql.Tx
}

// Begin gives the transaction that ends with the answer. Where the work leaves the database, ask
// for it afterwards. It does not end with the request's context: a client that hangs up after the
// charge must not undo the record of it.
func (c *Call) Begin() (*sql.Tx, error) {
	var err error
	if c.tx == nil {
		c.tx, err = c.db.BeginTx(context.Background(), nil)
	}
	return c.tx, err
}

func (c *Call) commit() error {
	tx := c.tx
	c.tx = nil
	return tx.Commit()
}

func (c *Call) rollback() {
	if c.tx != nil {
		c.tx.Rollback()
		c.tx = nil
	}
}

type callKey struct{}

// CallOf gives the attempt that a handler works for.
func CallOf(r *http.Request) *Call { return r.Context().Value(callKey{}).(*Call) }

// answer is an http.ResponseWriter that keeps back what a handler answers.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func newAnswer() *answer                         { return &answer{status: 200, header: http.Header{}} }
func (a *answer) Header() http.Header            { return a.header }
func (a *answer) WriteHeader(status int)         { a.status = status }
func (a *answer) Write(part []byte) (int, error) { return a.body.Write(part) }

func (a *answer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	w.Write(a.body.Bytes())
}

// Wrap puts the middleware before a handler.
func (i Idempotency) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys := r.Header.Values("Idempotency-Key") // all: Get would hide a second one
		if len(keys) == 0 {
			problem(400, "Idempotency-Key is missing").send(w)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			problem(400, "The body cannot be read").send(w)
			return
		}
		for {
			a, err := i.work(next, r, strings.Join(keys, ", "), body)
			if err == nil {
				a.send(w)
				return
			}
			var pg *pq.Error
			errors.As(err, &pg)
			switch {
			case pg != nil && pg.Code == "ID001":
				continue // we were too slow, and another attempt has taken over: its answer is the answer
			case pg != nil && pg.Code == "ID400":
				problem(400, "Idempotency-Key is malformed").send(w)
			case pg != nil && (pg.Code == "22P02" || pg.Code == "22P05" || pg.Code == "22021"):
				problem(400, "The body is not JSON").send(w)
			default:
				log.Print(err)
				a := problem(503, "Please try again")
				a.header.Set("Retry-After", "1")
				a.send(w)
			}
			return
		}
	})
}

func (i Idempotency) work(next http.Handler, r *http.Request, header string, body []byte) (*answer, error) {
	call := &Call{db: i.DB}
	defer call.rollback() // what was not committed
	tx, err := call.Begin()
	if err != nil {
		return nil, err
	}
	client := i.Client(r)
	var key, outcome string
	var token sql.NullString
	var attempt, status sql.NullInt64
	var headers, stored []byte
	// The body as a string: bytes would be sent as a bytea.
	err = tx.QueryRow(reserve, client, header, r.URL.Path, string(body), null(i.Lease), null(i.Retention)).
		Scan(&key, &outcome, &token, &attempt, &status, &headers, &stored, &call.ProviderKey)
	if err != nil {
		return nil, err
	}
	if outcome != "new" {
		return known(outcome, int(status.Int64), headers, stored)
	}
	if i.Lease != "" { // before anything leaves the database
		if err := call.commit(); err != nil {
			return nil, err
		}
	}
	call.Attempt = int(attempt.Int64)

	a := newAnswer()
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, call))
	r.Body = io.NopCloser(bytes.NewReader(body))
	next.ServeHTTP(a, r)
	if a.status >= 500 { // that is no answer: a retry may find one
		return a, nil
	}
	kept := [][2]string{}
	for name, values := range a.header {
		for _, value := range values {
			if !notKept[name] {
				kept = append(kept, [2]string{name, value})
			}
		}
	}
	pairs, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	if tx, err = call.Begin(); err != nil {
		return nil, err
	}
	if _, err = tx.Exec(complete, client, key, token.String, a.status, a.body.Bytes(), string(pairs)); err != nil {
		return nil, err
	}
	return a, call.commit()
}

// known gives every outcome but new: it is an answer, to be sent as it is. Ours have their headers
// in a list of pairs, idem's own in an object.
func known(outcome string, status int, headers, body []byte) (*answer, error) {
	a := newAnswer()
	a.status = status
	a.body.Write(body)
	var pairs [][2]string
	if json.Unmarshal(headers, &pairs) != nil {
		var object map[string]string
		if err := json.Unmarshal(headers, &object); err != nil {
			return nil, err
		}
		for name, value := range object {
			pairs = append(pairs, [2]string{name, value})
		}
	}
	for _, pair := range pairs {
		a.header.Add(pair[0], pair[1])
	}
	if outcome == "replay" {
		a.header.Set("Idempotent-Replayed", "true")
	}
	return a, nil
}

func problem(status int, title string) *answer {
	a := newAnswer()
	a.status = status
	a.header.Set("Content-Type", "application/problem+json")
	json.NewEncoder(&a.body).Encode(map[string]any{"title": title, "status": status})
	return a
}

func null(span string) sql.NullString { return sql.NullString{String: span, Valid: span != ""} }
