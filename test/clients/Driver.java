import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;

class Driver {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper().enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Object argument = mapper.readValue(line, Object.class);
            if (argument instanceof List<?> parts)
                System.out.println(ProviderKey.providerKey((String) parts.get(0), (String) parts.get(1), (String) parts.get(2)));
            else
                System.out.println(HexFormat.of().formatHex(
                    Fingerprint.fingerprint(mapper.readValue((String) argument, Object.class))));
        }
    }
}
