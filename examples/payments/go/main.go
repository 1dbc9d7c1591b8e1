// A payments service in Go: net/http, database/sql and lib/pq.
//
//	POST /payments     charges at a provider; a lease holds the key meanwhile
//	POST /transfers    in one transaction
package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

// The provider has this long; the lease must be longer.
var provider = http.Client{Timeout: 30 * time.Second}

type order struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
	client    string
}

type orderKey struct{}

func orderOf(r *http.Request) order { return r.Context().Value(orderKey{}).(order) }

// checked refuses what need not begin, and what is refused here takes no key.
func checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, client, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if scheme != "Bearer" || client == "" {
			problem(401, "Who are you?").send(w)
			return
		}
		o := order{client: client}
		body, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(body, &o) != nil || o.Reference == "" || o.Amount <= 0 {
			problem(400, "A reference and an amount are needed").send(w)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), orderKey{}, o))
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func pay(w http.ResponseWriter, r *http.Request) {
	call, o := CallOf(r), orderOf(r)
	status, charge, err := charge(o, call.ProviderKey)
	if err != nil { // perhaps the money moved: the next attempt finds out, with the same key
		respond(w, 502, map[string]any{"title": "The payment provider did not answer"})
		return
	}
	if status != 201 { // final: kept, and replayed
		respond(w, status, charge)
		return
	}
	tx, err := call.Begin()
	if err == nil {
		var id int64
		err = tx.QueryRow("INSERT INTO payment (client, reference, amount, charge) VALUES ($1, $2, $3, $4) RETURNING id",
			o.client, o.Reference, o.Amount, charge["charge"]).Scan(&id)
		w.Header().Set("Location", fmt.Sprint("/payments/", id))
		charge["payment"] = id
	}
	respondOr503(w, charge, err)
}

func transfer(w http.ResponseWriter, r *http.Request) {
	o := orderOf(r)
	var id int64
	tx, err := CallOf(r).Begin()
	if err == nil {
		err = tx.QueryRow("INSERT INTO transfer (client, reference, amount) VALUES ($1, $2, $3) RETURNING id",
			o.client, o.Reference, o.Amount).Scan(&id)
		w.Header().Set("Location", fmt.Sprint("/transfers/", id))
	}
	respondOr503(w, map[string]any{"transfer": id}, err)
}

func charge(o order, providerKey string) (int, map[string]any, error) {
	body, _ := json.Marshal(o)
	call, err := http.NewRequest("POST", os.Getenv("PROVIDER")+"/charges", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	call.Header.Set("Idempotency-Key", providerKey)
	call.GetBody = nil // the transport sends it once; trying again is for the next attempt
	reply, err := provider.Do(call)
	if err != nil {
		return 0, nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode >= 500 {
		return 0, nil, fmt.Errorf("the provider answered %d", reply.StatusCode)
	}
	var answer map[string]any
	err = json.NewDecoder(reply.Body).Decode(&answer)
	return reply.StatusCode, answer, err
}

func respond(w http.ResponseWriter, status int, answer any) {
	kind := "application/json"
	if status >= 400 {
		kind = "application/problem+json"
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer)
}

func respondOr503(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		log.Print(err)
		respond(w, 503, map[string]any{"title": "Please try again"})
		return
	}
	respond(w, 201, answer)
}

func main() {
	// Where and as whom is in PGHOST, PGDATABASE, PGUSER. Parameters that travel with the statement
	// also work behind PgBouncer in transaction mode, where nothing may be prepared before.
	db, err := sql.Open("postgres", "binary_parameters=yes")
	if err != nil {
		log.Fatal(err)
	}
	lease, retention := "60 s", ""
	if seconds := os.Getenv("LEASE"); seconds != "" {
		lease = seconds + " s"
	}
	if seconds := os.Getenv("RETENTION"); seconds != "" {
		retention = seconds + " s"
	}
	client := func(r *http.Request) string { return orderOf(r).client }
	payments := Idempotency{DB: db, Client: client, Lease: lease, Retention: retention}
	transfers := Idempotency{DB: db, Client: client, Retention: retention}
	http.Handle("/payments", checked(payments.Wrap(http.HandlerFunc(pay))))
	http.Handle("/transfers", checked(transfers.Wrap(http.HandlerFunc(transfer))))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
