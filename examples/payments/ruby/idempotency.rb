# Rack middleware: what is requested many times with one Idempotency-Key happens once.
#
#   use Idempotency, connect                 all the work is in this database
#   use Idempotency, connect, lease: '60 s'  the work leaves it, to a payment provider, say
#
# `connect` is called for a PG::Connection. REMOTE_USER is who was authenticated, by what stands
# before this. The application finds a Call in env['idempotency'].

require 'json'
require 'pg'
require 'stringio'

class Idempotency
  RESERVE = <<~SQL.freeze
    SELECT key, outcome, token, attempt, status_code, headers, body,
           idem_provider_key(client => $1, key => key) AS provider_key
      FROM idem_parse_key($2) AS key,
           idem_reserve(client => $1, key => key,
                        request => jsonb_build_object('path', $3::text, 'body', $4::jsonb),
                        lease => $5::interval, retention => $6::interval)
  SQL
  COMPLETE = <<~SQL.freeze
    SELECT idem_complete_bytes(client => $1, key => $2, token => $3, status_code => $4, body => $5, headers => $6::jsonb)
  SQL

  # Of an answer these are not kept: the first is the first caller's alone.
  NOT_KEPT = %w[set-cookie content-length date].freeze

  # One attempt at a request, and the transaction of its answer.
  class Call
    attr_accessor :provider_key, :attempt

    def initialize(connect)
      @connect = connect
    end

    # The connection, in the transaction that ends with the answer. Where the work leaves the
    # database, ask for it afterwards.
    def begin
      @db ||= @connect.call.tap { |db| db.exec('BEGIN') }
    end

    def commit
      @db.exec('COMMIT')
      close
    end

    # Whatever was not committed is rolled back with the connection.
    def close
      @db&.close
      @db = nil
    end
  end

  def initialize(app, connect, lease: nil, retention: nil)
    @app, @connect, @lease, @retention = app, connect, lease, retention
  end

  def call(env)
    return problem(400, 'Idempotency-Key is missing') unless env['HTTP_IDEMPOTENCY_KEY']

    body = env['rack.input'].read
    begin
      attempt = Call.new(@connect)
      work(attempt, env.merge('rack.input' => StringIO.new(body), 'idempotency' => attempt), body)
    rescue PG::Error => e
      attempt.close
      state = e.result&.error_field(PG::Result::PG_DIAG_SQLSTATE)
      # We were too slow, and another attempt has taken over: its answer is the answer.
      retry if state == 'ID001'
      return problem(400, 'Idempotency-Key is malformed') if state == 'ID400'
      return problem(400, 'The body is not JSON') if %w[22P02 22P05 22021].include?(state)

      env['rack.errors'].puts(e.message)
      problem(503, 'Please try again', 'retry-after' => '1')
    ensure
      attempt.close
    end
  end

  private

  def work(attempt, env, body)
    client = env['REMOTE_USER']
    reserved = attempt.begin.exec_params(
      RESERVE, [client, env['HTTP_IDEMPOTENCY_KEY'], env['PATH_INFO'], body, @lease, @retention]
    ).first
    return known(reserved) unless reserved['outcome'] == 'new'

    attempt.commit if @lease # before anything leaves the database
    attempt.provider_key = reserved['provider_key']
    attempt.attempt = reserved['attempt'].to_i

    status, headers, parts = @app.call(env)
    answer = +''.b
    parts.each { |part| answer << part.b }
    parts.close if parts.respond_to?(:close)
    keep(attempt, reserved, client, status, headers, answer) if status < 500 # else it is no answer: a retry may find one
    [status, headers, [answer]]
  end

  def keep(attempt, reserved, client, status, headers, answer)
    kept = headers.to_a.reject { |name, _| NOT_KEPT.include?(name.downcase) }
    # Bytes have to be called bytes: as text, a NUL would end them.
    bytes = { value: answer, type: 17, format: 1 }
    attempt.begin.exec_params(COMPLETE, [client, reserved['key'], reserved['token'], status, bytes, JSON.generate(kept)])
    attempt.commit
  end

  # Every outcome but `new` is an answer, to be sent as it is. Ours have their headers in a list of
  # pairs, idem's own in an object.
  def known(reserved)
    headers = JSON.parse(reserved['headers']).to_h
    headers['idempotent-replayed'] = 'true' if reserved['outcome'] == 'replay'
    [reserved['status_code'].to_i, headers, [PG::Connection.unescape_bytea(reserved['body'] || '')]]
  end

  def problem(status, title, headers = {})
    body = JSON.generate(title: title, status: status)
    [status, { 'content-type' => 'application/problem+json', **headers }, [body]]
  end
end
